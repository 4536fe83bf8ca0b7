"""A TensorFlow dataset by name, as TFDS prepared it on disk. Nothing is downloaded.

Names are TFDS's: `wikipedia/20230601.en`, `my_dataset:1.0.0`, or the folder of a version.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from input_pipelines.sources import text_sources
from input_pipelines.sources.cpu_only_tensorflow import cpu_only_tensorflow
from input_pipelines.sources.text_sources import BadRecords, FieldError, Record, SourceError

_BATCH = 256  # examples read ahead


@dataclasses.dataclass(frozen=True)
class Tfds:
    """Examples of a split, in the order of its files.

    Attributes:
      name: of the dataset, with config and version if wanted, or a prepared version's folder.
      data_dir: where TFDS keeps data; "" for its default (TFDS_DATA_DIR).
      split: TFDS's notation, such as 'train[:1%]'.
      id_field, title_field, text_field: 'outer/inner' for features inside features; "" for no
        titles, and for ids that are numbers in the split.
    """

    name: str
    data_dir: str
    split: str
    id_field: str
    title_field: str
    text_field: str

    def records(self, bad: BadRecords) -> Iterator[Record]:
        """Yields the records in order, reporting malformed ones to `bad`.

        Raises:
          SourceError: no such dataset is prepared, no such split or field, or a file is damaged.
        """
        builder = _builder(self.name, self.data_dir)
        examples, unique = self._examples(builder), text_sources.UniqueIds()
        for number, example in enumerate(examples):
            where = f"{builder.info.full_name}:{self.split}:{number}"
            try:
                record = self._record(example, number, where)
            except FieldError as error:
                bad.add(where, error.reason, str(error), repr(example))
                continue
            if before := unique.first(record.id, where.rpartition(":")[0], number):
                detail = f"id {record.id!r} was already given in {before}"
                bad.add(where, "duplicate_id", detail, record.text)
                continue
            yield record

    def _examples(self, builder: Any) -> Iterator[Mapping[str, Any]]:
        tf = cpu_only_tensorflow()
        import tensorflow_datasets as tfds

        for field in filter(None, (self.id_field, self.title_field, self.text_field)):
            _require_field(builder, field)
        # One file after the other, none shuffled: the same order every time.
        config = tfds.ReadConfig(
            interleave_cycle_length=1, interleave_block_length=1, try_autocache=False
        )
        try:
            dataset = builder.as_dataset(self.split, read_config=config, shuffle_files=False)
            yield from tfds.as_numpy(dataset.prefetch(_BATCH))
        except ValueError as error:
            raise SourceError(
                f"{builder.info.full_name}: no split {self.split!r} ({error}); there are "
                f"{sorted(builder.info.splits)}"
            ) from error
        except (tf.errors.OpError, AssertionError) as error:
            raise SourceError(
                f"{builder.data_path}: cannot be read ({error}); a file is damaged or cut short. "
                "Prepare the dataset again"
            ) from error

    def _record(self, example: Mapping[str, Any], number: int, where: str) -> Record:
        return Record(
            id=_text(example, self.id_field, is_id=True) if self.id_field else str(number),
            title=_text(example, self.title_field) if self.title_field else "",
            text=_text(example, self.text_field),
            source=where,
        )


def _builder(name: str, data_dir: str) -> Any:
    cpu_only_tensorflow()
    import tensorflow_datasets as tfds

    try:
        if os.path.isfile(os.path.join(name, "dataset_info.json")):
            return tfds.builder_from_directory(name)
        builder = tfds.builder(name, data_dir=data_dir or None, try_gcs=False)
    except tfds.core.DatasetNotFoundError as error:
        raise SourceError(
            f"TFDS has no dataset {name!r} in {data_dir or 'its default folder'}: {error}. Give "
            "the folder of a prepared version (with dataset_info.json), or use `tfds build`"
        ) from error
    if not os.path.isfile(os.path.join(str(builder.data_path), "dataset_info.json")):
        raise SourceError(
            f"{builder.info.full_name} is not prepared: expected {builder.data_path}. Prepare it "
            "with `tfds build`, or set data_dir to where it is; training never downloads"
        )
    return builder


def _require_field(builder: Any, field: str) -> None:
    features = builder.info.features
    for part in field.split("/"):
        if not hasattr(features, "keys") or part not in features:
            raise SourceError(
                f"{builder.info.full_name}: no field {field!r}; its features are "
                f"{sorted(builder.info.features)}"
            )
        features = features[part]


def _text(example: Mapping[str, Any], field: str, is_id: bool = False) -> str:
    value: Any = example
    for part in field.split("/"):
        value = value[part]
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise FieldError("not_utf8", f"field {field!r}: not UTF-8 ({error})") from None
    elif hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    return text_sources.text_field({field: value}, field, is_id)
