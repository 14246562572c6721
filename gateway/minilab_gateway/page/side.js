// One of the two interfaces: the answer that is under way in it, and its end.

import { Answers } from "./answer.js";
import { cancel, follow } from "./api.js";
import { find, notice } from "./dom.js";
import { keep, noteAsked } from "./session.js";
import { Reading } from "./tokens.js";
import { whenShown } from "./views.js";

const AGAIN = 1000; // milliseconds until a gateway that does not answer is asked once more to stop
const QUIET = 4000; // without a token for so long, one is told that the answer is waited for
const LASTING = [400, 401, 403, 404];

export class Side {
  constructor(section, place) {
    this.reading = new Reading(place);
    this.stop = find(".stop", section);
    this.stop.addEventListener("click", () => this.halt());
    this.running = null;
    whenShown(section.id, () => this.reading.follow()); // it may have grown meanwhile
  }

  get isRunning() {
    return this.running !== null;
  }

  async run(turn, place) {
    const answers = new Answers(place);
    const running = this.running = { turn, answers, aborting: new AbortController() };
    const { signal } = running.aborting;
    this.stop.disabled = Boolean(turn.stopped);
    const waits = () => { if (!turn.stopped) answers.say("waiting …"); };
    if (turn.stopped) answers.stopping();
    waits();
    let quiet;
    this.reading.follow();
    try {
      await follow(turn.request, {
        onId: (id) => {
          noteAsked(id, turn.request.body);
          if (turn.id === id && !turn.stopped) return;
          turn.id = id;
          keep();
          if (turn.stopped) this.#cancel(running);
        },
        onEvent: (chunk) => {
          clearTimeout(quiet);
          quiet = setTimeout(waits, QUIET);
          answers.take(chunk);
          this.reading.follow();
        },
        onWaiting: (text) => {
          notice(text);
          if (text && turn.stopped && !turn.id) running.aborting.abort(); // nobody has taken it
        },
        signal,
      });
      if (signal.aborted) answers.say("stopped");
    } catch (error) {
      turn.failed = error.message;
      answers.fail(error.message);
    } finally {
      clearTimeout(quiet);
      this.#over(running);
    }
  }

  #over(running) {
    const { turn, answers } = running;
    running.isOver = true;
    Object.assign(turn, { text: answers.text, done: true });
    if (turn.request.body.messages) delete turn.request; // it holds all turns before
    this.reading.follow();
    if (this.running === running) {
      this.running = null;
      this.stop.disabled = true;
    }
    keep();
  }

  // What has no id yet is stopped as soon as it has one.
  halt() {
    const { running } = this;
    if (!running || running.turn.stopped) return;
    running.turn.stopped = true;
    running.answers.stopping();
    this.stop.disabled = true;
    keep();
    if (running.turn.id) this.#cancel(running);
  }

  // Stop it, and be free for another.
  leave() {
    this.halt();
    this.running = null;
    this.stop.disabled = true;
  }

  async #cancel(running) {
    if (running.isCancelled) return;
    running.isCancelled = true;
    const { path } = running.turn.request;
    while (!running.isOver) {
      try {
        return await cancel(path, running.turn.id);
      } catch (error) {
        if (LASTING.includes(error.status)) return notice(error.message, true);
        notice("It is stopped as soon as the gateway answers.", true);
      }
      await new Promise((done) => setTimeout(done, AGAIN));
    }
  }
}
