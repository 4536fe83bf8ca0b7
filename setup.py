"""Kennel: pre-train, fine-tune, index, evaluate and serve retrieval language models with JAX."""

from setuptools import find_packages, setup

# Versions that were seen to install and work together on Python 3.11. TensorFlow's minor version
# is dictated by ScaNN's wheel; TensorBoard 2.20 imports pkg_resources, gone in setuptools 81.
CORE = [
    "jax==0.10.2",
    "jaxlib==0.10.2",
    "flax==0.12.8",
    "optax==0.2.8",
    "orbax-checkpoint==0.12.8",
    "orbax-export==0.0.8",
    "tensorflow-cpu==2.20.0",
    "tensorboard==2.20.0",
    "setuptools<81",
    "tensorflow-datasets==4.9.10",
    "importlib-resources",
    "array-record==0.8.6",
    "ir-datasets==0.6.3",
    "scann==1.4.2",
    "transformers==5.23.0",
    "tokenizers==0.23.3",
    "sentencepiece==0.2.3",
    "safetensors==0.8.0",
    "gin-config==0.5.0",
    "absl-py==2.5.1",
    "numpy==2.4.6",
    "pyarrow>=21",  # parquet files; the extra `beam` takes an older one than the others
    "protobuf==6.33.6",
    "bm25s==0.3.16",
    "PyStemmer==3.1.0",
    "sentencex==1.0.32",
    "langcodes==3.5.1",
    "scikit-learn==1.9.1",
    "scipy==1.17.1",
    "regex==2026.11.15",
    "ir-measures==0.4.3",
    "pytrec-eval-terrier==0.5.11",
    "sacrebleu==2.6.0",
    "rouge-score==0.1.2",
    "matplotlib==3.11.2",
    "PyYAML==6.0.4",
    "rich==15.0.0",
    "tqdm==4.70.1",
]

EXTRAS = {
    "tpu": ["jax[tpu]==0.10.2", "google-cloud-storage==3.17.1"],
    "cuda": ["jax[cuda13]==0.10.2"],
    "serve": [
        "fastapi==0.165.0",
        "uvicorn==0.54.0",
        "orjson==3.13.0",
        "prometheus-client==0.26.0",
    ],
    # The peers: exports are opened in them, benchmarks run next to them. `make interop` installs
    # them, and takes PyTorch for CPUs.
    "interop": ["torch==2.13.0", "sentence-transformers==6.2.0", "faiss-cpu==1.15.1"],
    "beam": ["apache-beam==2.77.0"],
    "cloud": ["google-cloud-storage==3.17.1"],  # paths on gs://
    # Approximate search of sparse representations; exact search needs nothing. Linux on x86_64.
    "sparse": ["pyseismic-lsr==0.5.4"],
    "sweeps": ["optuna==5.0.0"],  # samplers and pruners; grids and quasi-random points need none
    "test": [
        # The extra `serve`, and a client of it.
        "fastapi==0.165.0",
        "uvicorn==0.54.0",
        "orjson==3.13.0",
        "prometheus-client==0.26.0",
        "httpx==0.28.1",
        "google-cloud-storage==3.17.1",
        # Another client and another server than ours, to test each with.
        "gcsfs==2026.10.1",
        "gcp-storage-emulator==2026.7.19",
        "pytest==9.2.0",
        "pytest-timeout==2.4.0",
        "pytest-xdist==3.8.0",
        "hypothesis==6.170.15",
        "jsonschema==4.26.0",  # against the definition of JobSets, where there is one
        "optuna==5.0.0",
        "pyseismic-lsr==0.5.4; sys_platform == 'linux' and platform_machine == 'x86_64'",
        "ruff==0.17.5",
        "mypy==2.4.1",
        # Compiles for TPUs on any x86 Linux machine, which is all that it has wheels for.
        "libtpu==0.0.42.1; sys_platform == 'linux' and platform_machine == 'x86_64'",
    ],
}

setup(
    name="kennel",
    version="0.1.0",
    description=__doc__,
    license="Apache-2.0",
    python_requires=">=3.11,<3.12",
    # A static path, so that type checkers and editors resolve an editable install.
    package_dir={"": "."},
    packages=find_packages(
        include=["t5x_style*", "models*", "input_pipelines*", "gin_configs*", "launch*"]
    ),
    package_data={
        "gin_configs": ["**/*.gin"],
        "t5x_style": ["reporting/references/*.json"],
        "launch": ["cloud/tpu.lock", "cloud/uv_pin.txt", "page/**/*"],
    },
    entry_points={"console_scripts": ["kennel = launch.cli:main"]},
    install_requires=CORE,
    extras_require=EXTRAS,
)
