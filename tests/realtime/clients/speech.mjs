// What the client programs for Node share: phrases, waiting with a limit, the end.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export const [url, folder] = process.argv.slice(2);

const CHUNK_MS = 40;
const PATIENCE_MS = 90_000;
const RATE = 24_000;

/** Speaks a phrase as a microphone would: 40 ms at a time, in real time. */
export async function speak(name, send) {
  const file = readFileSync(join(folder, `${name}.wav`));
  const audio = file.subarray(file.indexOf('data') + 8);
  const size = (2 * RATE * CHUNK_MS) / 1000;
  const began = performance.now();
  for (let at = 0, n = 1; at < audio.length; at += size, n += 1) {
    send(new Uint8Array(audio.subarray(at, at + size)).buffer);
    const ahead = began + n * CHUNK_MS - performance.now();
    if (ahead > 0) await new Promise((resolve) => setTimeout(resolve, ahead));
  }
}

/** Things that are waited for by name. Each happens any number of times; `next` waits for one more. */
export class Happenings {
  #waiting = new Map();

  happen(name) {
    const waiting = this.#waiting.get(name) ?? [];
    this.#waiting.delete(name);
    for (const resolve of waiting) resolve();
  }

  next(name) {
    return new Promise((resolve) => {
      this.#waiting.set(name, [...(this.#waiting.get(name) ?? []), resolve]);
    });
  }
}

/** Runs the conversation, prints the report and exits: 1 when something failed or an error was told. */
export async function run(converse, report) {
  const late = setTimeout(() => {
    console.log(report());
    console.log('FAILED: nothing more happened');
    process.exit(1);
  }, PATIENCE_MS);
  try {
    await converse();
  } catch (error) {
    console.log(report());
    console.log('FAILED:', error);
    process.exit(1);
  }
  clearTimeout(late);
  console.log(report());
  process.exit(0);
}

export function check(condition, words) {
  if (!condition) throw new Error(words);
}
