// Runs named cases one after the other, and prints a JSON object with the outcome of each: null, or what was wrong.
const outcomes = {};

export async function check(name, run) {
  try {
    await run();
    outcomes[name] = null;
  } catch (error) {
    outcomes[name] = `${error.constructor.name}: ${String(error.message).slice(0, 500)}`;
  }
}

export function equal(found, expected) {
  const [one, other] = [found, expected].map((each) => JSON.stringify(each));
  if (one !== other) throw new Error(`${one} is not ${other}`);
}

export const report = () => console.log(JSON.stringify(outcomes));
