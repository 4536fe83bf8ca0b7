/** How the model that is served was trained: curves of each training of its run. */

import { call } from "../api.js";
import { bar, element } from "../dom.js";
import { errorNotice, notice, placeholder, warning } from "../notices.js";
import { change, current } from "../state.js";
import { counted } from "../text.js";
import { panelsOf } from "./panels.js";
import { duration } from "./scales.js";
import { lengthOf, trainingSection } from "./training.js";

/**
 * @param {import("../main.js").Context} context
 * @returns {{element: HTMLElement, show: (state: import("../state.js").State) => void}}
 */
export function createCurvesView(context) {
  const root = element("section.curves", { "aria-label": "Training" });
  let [asked, answer, drawn] = [0, null, ""]; // the version that is awaited; what is shown
  let turn = 0; // an older answer that comes late is not shown

  async function load() {
    const mine = ++turn;
    asked = context.info.bundle_version;
    context.setBusy(true);
    root.setAttribute("aria-busy", "true");
    if (!answer) root.replaceChildren(placeholder());
    try {
      const found = await call("curves");
      if (mine !== turn) return;
      [answer, drawn] = [found, ""];
      draw(current());
      context.seen(found.version);
    } catch (error) {
      if (mine !== turn) return;
      answer = null;
      root.replaceChildren(errorNotice(error, load));
      context.say("The curves cannot be shown.");
    } finally {
      context.setBusy(false);
      root.removeAttribute("aria-busy");
    }
  }

  function draw({ stage, scale }) {
    const now = JSON.stringify([stage, scale]);
    if (now === drawn) return;
    drawn = now;
    const focused = root.contains(document.activeElement) ? document.activeElement.id : "";
    root.replaceChildren(...content(answer, stage, scale === "log"));
    if (focused) document.getElementById(focused)?.focus();
  }

  return {
    element: root,
    show(state) {
      if (!context.info.curves) {
        root.replaceChildren(notice("No curves in this bundle", "Bundles that are made of a "
          + "finished run hold the curves of its trainings: kennel export --bundle=RUN makes it "
          + "again."));
      } else if (![asked, answer?.version].includes(context.info.bundle_version)) {
        load();
      } else if (answer) {
        draw(state);
      }
    },
  };
}

function content({ trainings, unread, left_out: leftOut }, stage, isLog) {
  const ordered = [...trainings.filter((one) => one.served),
    ...trainings.filter((one) => !one.served)];
  const chosen = ordered.filter((one) => one.name === stage);
  const shown = chosen.length ? chosen : ordered;
  const hasLoss = shown.some((one) => panelsOf(one).some((panel) => panel.isLoss));
  const total = trainings.reduce((sum, one) => sum + one.seconds, 0);
  const names = new Intl.ListFormat("en").format(unread);
  return [
    element("div.summary.curves-summary", {},
      element("span", {}, `${counted(trainings.length, "training")} · ${duration(total)} in all`),
      hasLoss ? logButton(isLog) : null),
    unread.length ? warning(`The logs of these trainings could not be read: ${names}.`) : null,
    leftOut ? warning(`${counted(leftOut, "curve")} left out: a bundle has room for 40 of each `
      + "training, and for 1 MB of them.") : null,
    ordered.length > 1 ? chain(ordered, chosen[0]?.name ?? "") : null,
    ...shown.map((one) => trainingSection(one, isLog)),
    shown.length ? caption() : null,
  ].filter(Boolean);
}

function logButton(isLog) {
  return element("button.quiet.toggle", { type: "button", id: "curves-scale",
    "aria-pressed": String(isLog),
    onclick: () => change({ scale: isLog ? "" : "log" }, { replace: true }) },
  "Log scale of losses");
}

/** The trainings with how long they took; a button shows one of them alone. */
function chain(trainings, chosen) {
  const longest = Math.max(...trainings.map((one) => one.seconds));
  const button = (one, number) => element("li", {}, element("button.chain-stage", { type: "button",
    id: `chain-${number}`, "aria-pressed": String(one.name === chosen), title: one.name,
    onclick: () => change({ stage: one.name === chosen ? "" : one.name }) },
  element("span.chain-name", {}, one.name), element("span.chain-length", {}, lengthOf(one)),
  bar(one.seconds / (longest || 1))));
  const group = (label, isServed) => {
    const buttons = trainings.map(button).filter((_, number) =>
      trainings[number].served === isServed);
    return buttons.length ? element("div.chain-group", {}, element("p.eyebrow", {}, label),
      element("ol", { "data-served": String(isServed), "aria-label": label }, ...buttons)) : null;
  };
  return element("div.chain", {}, group("The model that is served", true),
    group("Other trainings of the run", false));
}

function caption() {
  return element("p.hint.curves-caption", {}, element("kbd", {}, "←"), element("kbd", {}, "→"),
    " steps ", element("kbd", {}, "Esc"), " last values. A curve has at most 300 points of its "
    + "log, evenly spaced, with the lowest and the highest.");
}
