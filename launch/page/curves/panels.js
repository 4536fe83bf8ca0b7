/** Which curves share a chart: the same metric of training batches and of each evaluation. */

const MOST = 6; // curves of a chart, so that colours differ
const NAMES = { loss: "Loss", learning_rate: "Learning rate", tokens_per_second: "Tokens per second",
  examples_per_second: "Examples per second", accuracy: "Accuracy" };
const LAST = ["learning_rate", "tokens_per_second", "examples_per_second"];

/**
 * A curve of /curves, with the name of what was measured.
 *
 * @typedef {Object} Series
 * @property {string} label "train", "dev"; "" of a curve that needs none
 * @property {number} logged
 * @property {number[]} steps
 * @property {(number|null)[]} values null where the value was not finite
 *
 * @typedef {Object} Panel
 * @property {string} title
 * @property {boolean} isLoss
 * @property {Series[]} series at least one, each with a point
 */

/**
 * The charts of a training: loss first, then evaluations, then learning rate and speed.
 *
 * @param {{curves: {name: string, logged: number, steps: number[], values: (number|null)[]}[]}}
 *   training
 * @returns {Panel[]}
 */
export function panelsOf(training) {
  const groups = new Map();
  for (const curve of training.curves) {
    if (!curve.steps.length) continue;
    const [label, metric] = parts(curve.name);
    if (!groups.has(metric)) groups.set(metric, []);
    groups.get(metric).push({ label, ...curve });
  }
  const rank = (metric) => (metric === "loss" ? -1 : LAST.indexOf(metric) + 1);
  return [...groups.keys()].sort((one, other) => rank(one) - rank(other)).flatMap((metric) =>
    chunks(groups.get(metric)).map((series, number, all) => ({
      title: (NAMES[metric] ?? metric.replaceAll("_", " "))
        + (all.length > 1 ? ` (${number + 1} of ${all.length})` : ""),
      isLoss: metric === "loss" || metric.endsWith("_loss"),
      series: LAST.includes(metric) ? series.map((one) => ({ ...one, label: "" })) : series,
    })));
}

/** ["dev", "MRR@10"] of "eval/dev/MRR@10"; ["train", "loss"] of "train/loss". */
function parts(name) {
  const [kind, ...rest] = name.split("/");
  if (kind !== "eval" || rest.length < 2) return [kind, rest.join("/") || name];
  return [rest[0], rest.slice(1).join("/")];
}

function chunks(list) {
  const count = Math.ceil(list.length / MOST);
  const size = Math.ceil(list.length / count);
  return Array.from({ length: count }, (_, at) => list.slice(at * size, (at + 1) * size));
}
