// `@openai/agents-realtime`: a spoken turn, an interruption. Arguments: ws address, the phrases' folder.

import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from '@openai/agents-realtime';

import { Happenings, check, run, speak, url } from './speech.mjs';

const agent = new RealtimeAgent({ name: 'voice', instructions: 'Be brief.' });
const session = new RealtimeSession(agent, {
  transport: new OpenAIRealtimeWebSocket(),
  model: 'gpt-realtime',
  config: { voice: 'marin', audio: { input: { transcription: { model: 'whisper-1' } } } },
});

const seen = [];
const errors = [];
const audio = new Map();
const statuses = [];
const happenings = new Happenings();
let history = [];

function see(name) {
  if (seen.at(-1) !== name) seen.push(name);
  happenings.happen(name);
}

session.on('audio', (event) => {
  audio.set(event.responseId, (audio.get(event.responseId) ?? 0) + event.data.byteLength / 48);
  see('audio');
});
session.on('audio_interrupted', () => see('audio_interrupted'));
session.on('agent_start', () => see('agent_start'));
session.on('agent_end', () => see('agent_end'));
session.on('history_updated', (items) => {
  history = items;
});
session.on('error', (error) => errors.push(JSON.stringify(error)));
session.on('transport_event', (event) => {
  if (event.type !== 'response.done') return;
  statuses.push(event.response.status);
  see(event.response.status);
});

const said = (role) =>
  history
    .filter((item) => item.role === role)
    .flatMap((item) => item.content.map((part) => part.transcript ?? part.text ?? ''));

await run(
  async () => {
    await session.connect({ apiKey: 'any', url: `${url}/v1/realtime?model=gpt-realtime` });
    const send = (chunk) => session.sendAudio(chunk);
    const sounding = happenings.next('audio');
    await speak('count', send);
    await sounding;
    const interrupted = happenings.next('audio_interrupted');
    const cancelled = happenings.next('cancelled');
    const completed = happenings.next('completed');
    await speak('stop', send);
    await Promise.all([interrupted, cancelled, completed]);
    const answered = happenings.next('completed');
    session.sendMessage('Repeat after me: good bye.');
    await answered;
    session.close();
    check(errors.length === 0, `errors were told: ${errors}`);
    check(statuses.join() === 'cancelled,completed,completed', `responses ended as ${statuses}`);
    check(audio.size === 3, `${audio.size} answers had sound`);
    check(/count/i.test(said('user')[0] ?? ''), 'the first turn was not written down');
    check(/good ?bye/i.test(said('assistant').at(-1) ?? ''), 'the last answer has no words');
  },
  () =>
    [
      seen.join(' '),
      `responses: ${statuses.join(' ')}`,
      `sound: ${[...audio.values()].map((ms) => `${Math.round(ms)} ms`).join(', ')}`,
      `user: ${JSON.stringify(said('user'))}`,
      `assistant: ${JSON.stringify(said('assistant').map((text) => text.slice(0, 100)))}`,
      `errors: ${JSON.stringify(errors)}`,
    ].join('\n'),
);
