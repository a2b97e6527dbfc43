// `openai-realtime-api`: a spoken turn, an interruption, a manual turn. Arguments: ws address, the phrases' folder.

import { RealtimeClient } from 'openai-realtime-api';

import { Happenings, check, run, speak, url } from './speech.mjs';

const client = new RealtimeClient({
  url: `${url}/v1/realtime`,
  apiKey: 'any',
  sessionConfig: { instructions: 'Be brief.', turn_detection: { type: 'server_vad' } },
});

const seen = [];
const errors = [];
const statuses = [];
const happenings = new Happenings();

function see(name) {
  if (seen.at(-1) !== name) seen.push(name);
  happenings.happen(name);
}

client.on('conversation.updated', ({ delta }) => {
  if (delta?.audio) see('audio');
  if (delta?.transcript) see('transcript');
});
client.on('conversation.interrupted', () => see('conversation.interrupted'));
client.realtime.on('error', (event) => errors.push(JSON.stringify(event)));
client.realtime.on('server.response.done', ({ response }) => {
  statuses.push(response.status);
  see(response.status);
});

client.realtime.on('server.conversation.item.truncated', ({ audio_end_ms }) => see(`cut at ${audio_end_ms} ms`));

const of = (role) => client.conversation.getItems().filter((item) => item.role === role);
let report = () => seen.join(' ');

await run(
  async () => {
    await client.connect();
    await client.waitForSessionCreated();
    const send = (chunk) => client.appendInputAudio(chunk);
    const sounding = happenings.next('audio');
    await speak('count', send);
    await sounding;
    const cancelled = happenings.next('cancelled');
    const completed = happenings.next('completed');
    await speak('stop', send);
    await Promise.all([cancelled, completed]);

    // the client's own cut: a text is asked, its answer stopped in the middle and truncated
    const asked = happenings.next('audio');
    client.sendUserMessageContent([{ type: 'input_text', text: 'Count to fifty.' }]);
    await asked;
    const stopped = happenings.next('cancelled');
    const cut = happenings.next('cut at 250 ms');
    client.cancelResponse(of('assistant').at(-1).id, 6_000);
    await Promise.all([stopped, cut]);

    client.updateSession({ turn_detection: null });
    const answered = happenings.next('completed');
    await speak('stop', send);
    client.createResponse();
    await answered;

    const user = of('user').map((item) => item.formatted.transcript || item.formatted.text);
    const assistant = of('assistant').map((item) => item.formatted.transcript);
    const sound = of('assistant').map((item) => item.formatted.audio.length / 24);
    report = () =>
      [
        seen.join(' '),
        `responses: ${statuses.join(' ')}`,
        `sound: ${sound.map((ms) => `${Math.round(ms)} ms`).join(', ')}`,
        `user: ${JSON.stringify(user)}`,
        `assistant: ${JSON.stringify(assistant.map((text) => text.slice(0, 100)))}`,
        `errors: ${JSON.stringify(errors)}`,
      ].join('\n');
    client.disconnect();
    check(errors.length === 0, `errors were told: ${errors}`);
    check(statuses.join() === 'cancelled,completed,cancelled,completed', `responses ended as ${statuses}`);
    check(/count/i.test(user[0] ?? ''), 'the first turn was not written down');
    check(sound.length === 4 && sound[0] > 0 && sound[3] > 0, 'an answer had no sound');
    check(assistant.at(-1).length > 0, 'the last answer has no words');
  },
  () => `${report()}\nresponses: ${statuses.join(' ')}\nerrors: ${errors}`,
);
