// Writes what the JavaScript mirrors of Python modules say, for tests/web/test_mirrors.py to compare.

import { BAND_STEPS, FILLS, SHORT_BELOW_STEPS, barRects, gaugePercent, gaugeTone, sparkPath } from "../../../static/live/drawing.js";
import { age, freeness, number, shortName, stateWord } from "../../../static/live/format.js";
import * as messages from "../../../static/live/messages.js";

const cases = JSON.parse(process.argv[2]);
process.stdout.write(
  JSON.stringify({
    messages: { ...messages },
    thresholds: [SHORT_BELOW_STEPS, ...BAND_STEPS],
    fills: FILLS,
    bars: cases.bars.map(([bar, state]) => barRects(bar, state)),
    gauges: cases.freeness.map((value) => [gaugePercent(value), gaugeTone(value)]),
    sparks: cases.sparks.map(sparkPath),
    freeness: cases.freeness.map(freeness),
    numbers: cases.numbers.map(number),
    ages: cases.ages.map(age),
    names: cases.names.map((name) => shortName(name)),
    states: cases.states.map(stateWord),
  }),
);
