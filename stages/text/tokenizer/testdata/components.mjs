// Writes components.jsonl: small tokenizers, each with one component or option of
// tokenizer.json, and what the reference makes of some texts with them. Run in a
// folder where `npm install @anush008/tokenizers@0.6.0` was done:
//   node components.mjs > components.jsonl
import { createRequire } from 'module';
const { Tokenizer } = createRequire(process.cwd() + '/')('@anush008/tokenizers');

const bpe = (tokens, merges, more = {}) => ({
  type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
  fuse_unk: false, byte_fallback: false, ignore_merges: false,
  vocab: Object.fromEntries(tokens.map((t, i) => [t, i])), merges, ...more });

const chars = ['?', 'a', 'b', 'c', 'd', 'A', 'B', '1', '2', ' ', '▁', '.', '-', 'é', 'e', '\u0301', '\n', '中',
  'ab', 'bc', 'abc', '▁a', '▁ab', ' a', ' ab', '▁▁', '  ', '12', '..', 'AB', 'abcd', '中中'];
const merges = ['a b', 'b c', '▁ a', '▁a b', '  a', '▁ ▁', '1 2', '. .', 'A B', 'ab c', '中 中'].filter(m => m.split(' ').length === 2);
const pairs = [...merges.map(m => m.split(' ')), [' ', 'a'], [' a', 'b'], [' ', ' ']];
const spell = ['!', 'a', 'b', 'c', 'd', 'A', 'B', '1', '2', 'Ġ', '.', '-', 'Ã', '©', 'e', 'Ċ', "'", 's', 'Ġa', 'ab', 'Ġab', 'ĠĠ', '12', "'s", 'Ã©', '中', 'ï¿½', 'ï', '¿', '½', 'abcd'];
const spellPairs = [['a', 'b'], ['Ġ', 'a'], ['Ġa', 'b'], ['Ġ', 'Ġ'], ['1', '2'], ["'", 's'], ['Ã', '©']];
const bytes = [...Array(256).keys()].map(b => '<0x' + b.toString(16).toUpperCase().padStart(2, '0') + '>');

const tok = (patch = {}) => ({ version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null,
  pre_tokenizer: null, post_processor: null, decoder: null, model: bpe(chars, pairs), ...patch });
const level = (pre = {}, patch = {}) => tok({ model: bpe(spell, spellPairs),
  pre_tokenizer: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true, ...pre },
  decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }, ...patch });
const added = (content, more = {}) => ({ id: 0, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...more });
const withAdded = (list, patch = {}) => { const t = tok(patch); let n = Object.keys(t.model.vocab).length;
  t.added_tokens = list.map(a => ({ ...a, id: t.model.vocab[a.content] ?? n++ })); return t; };
const seq = (key, list) => ({ type: 'Sequence', [key]: list });
const split = (pattern, behavior, invert = false) => ({ type: 'Split', pattern, behavior, invert });
const meta = (prepend_scheme, split) => ({ type: 'Metaspace', replacement: '▁', prepend_scheme, split });
const fallback = (decoders, more = {}) => tok({ model: bpe([...chars, ...bytes], pairs, { byte_fallback: true, fuse_unk: true, unk_token: '?', ...more }), decoder: decoders });

const variants = {
  plain: tok(), merges_as_text: tok({ model: bpe(chars, merges) }),
  ignore_merges: tok({ model: bpe(chars, pairs, { ignore_merges: true }) }),
  unk: tok({ model: bpe(chars, pairs, { unk_token: '?' }) }),
  unk_fused: tok({ model: bpe(chars, pairs, { unk_token: '?', fuse_unk: true }) }),
  fallback: fallback(seq('decoders', [{ type: 'Replace', pattern: { String: '▁' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: ' ', start: 1, stop: 0 }])),
  fallback_no_fuse: fallback(seq('decoders', [{ type: 'ByteFallback' }, { type: 'Strip', content: 'a', start: 1, stop: 0 }]), { ignore_merges: true }),
  fallback_strip_end: fallback(seq('decoders', [{ type: 'ByteFallback' }, { type: 'Fuse' }, { type: 'Strip', content: '.', start: 0, stop: 1 }, { type: 'Replace', pattern: { String: 'ab' }, content: 'X' }])),
  decoder_metaspace: tok({ decoder: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'always', split: true } }),
  decoder_metaspace_never: tok({ decoder: { type: 'Metaspace', replacement: '▁', prepend_scheme: 'never', split: true } }),
  decoder_fused_metaspace: tok({ decoder: seq('decoders', [{ type: 'Fuse' }, { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first', split: true }]) }),
  decoder_empty: tok({ decoder: seq('decoders', []) }),
  byte_level: level(), byte_level_prefix: level({ add_prefix_space: true }), byte_level_no_regex: level({ use_regex: false }),
  byte_level_unk: level({}, { model: bpe(spell, spellPairs, { unk_token: '!', fuse_unk: true }) }),
  byte_level_split: level({}, { pre_tokenizer: seq('pretokenizers', [split({ Regex: '[a-c]+|\\s' }, 'Isolated'), { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: false }]) }),
  nested: level({}, { pre_tokenizer: seq('pretokenizers', [seq('pretokenizers', [{ type: 'Digits', individual_digits: true }]), seq('pretokenizers', [{ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false }])]) }),
  digits: tok({ pre_tokenizer: { type: 'Digits', individual_digits: false } }),
  digits_each: tok({ pre_tokenizer: { type: 'Digits', individual_digits: true } }),
  nfc: tok({ normalizer: { type: 'NFC' } }), nfd: tok({ normalizer: { type: 'NFD' } }),
  nfkc: tok({ normalizer: { type: 'NFKC' } }), nfkd: tok({ normalizer: { type: 'NFKD' } }),
  lowercase: tok({ normalizer: { type: 'Lowercase' } }),
  strip: tok({ normalizer: { type: 'Strip', strip_left: true, strip_right: true } }),
  strip_left: tok({ normalizer: { type: 'Strip', strip_left: true, strip_right: false } }),
  prepend: tok({ normalizer: seq('normalizers', [{ type: 'Prepend', prepend: '▁' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }]) }),
  replace_regex: tok({ normalizer: { type: 'Replace', pattern: { Regex: ' {2,}|\\.' }, content: '▁' } }),
  template: tok({ post_processor: { type: 'TemplateProcessing', single: [{ SpecialToken: { id: 'A', type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }, { SpecialToken: { id: 'B', type_id: 0 } }], pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }], special_tokens: { A: { id: 'A', ids: [5], tokens: ['A'] }, B: { id: 'B', ids: [6, 7], tokens: ['B', '1'] } } } }),
  added_plain: withAdded([added('ab'), added('a.'), added('b..'), added('<x>', { special: true })]),
  added_longest: withAdded([added('a'), added('abc'), added('ab'), added('bcd')]),
  added_lstrip: withAdded([added('c', { lstrip: true }), added('.', { lstrip: true, rstrip: true })]),
  added_rstrip: withAdded([added('c', { rstrip: true, special: true }), added('1', { rstrip: true })]),
  added_word: withAdded([added('ab', { single_word: true }), added('1', { single_word: true, lstrip: true })]),
  added_word_overlap: withAdded([added('a-', { single_word: true }), added('-b')]),
  added_normalized: withAdded([added('AB', { normalized: true }), added('-', { normalized: true, special: true })], { normalizer: { type: 'Lowercase' } }),
  added_both: withAdded([added('AB'), added('ab', { normalized: true })], { normalizer: seq('normalizers', [{ type: 'Lowercase' }, { type: 'Replace', pattern: { String: ' ' }, content: '▁' }]) }),
  added_prepend: withAdded([added('.', { special: true }), added('b', { normalized: true })], { normalizer: { type: 'Prepend', prepend: '▁' }, pre_tokenizer: meta('first', true) }),
};
for (const scheme of ['always', 'first', 'never']) for (const cut of [true, false])
  variants[`metaspace_${scheme}_${cut}`] = withAdded([added('.')], { pre_tokenizer: meta(scheme, cut) });
for (const behavior of ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous']) {
  for (const invert of [false, true]) variants[`split_${behavior}_${invert}`] = tok({ pre_tokenizer: split({ String: '.' }, behavior, invert) });
  variants[`split_${behavior}_regex`] = tok({ pre_tokenizer: split({ Regex: '[ .]|(?i:ab)(?=c)|\\d+$' }, behavior) });
}
variants.split_empty_match = tok({ pre_tokenizer: split({ Regex: '(?=b)|c*' }, 'Isolated') });

const texts = ['', 'a', 'abc', ' abc', 'abcd abcd', 'ab  ab', '  a b  ', 'bb', 'abbba', 'b a b', 'a.b..c...', '. a . b', 'AB ab Ab', 'x', 'xy a zz', 'a中中中b',
  'é e\u0301 ﬁ', '12 1212 a1\n12', "a's 'S", '\n\n a\n', ' \n  ab', '<x>ab<x> c', ' c c  1  1 .', 'ab-AB-ab', '▁a▁▁b', 'abab1ab ab', 'İÀ½Ⅷ\u0663', '😀 x\ufffd', 'c', '  ', '1', 'bcdabcd', '<0x41><0xE4>', 'ca-b a-b -b', '..a.ab..ab...b'];

const out = [];
for (const [name, json] of Object.entries(variants)) {
  const t = Tokenizer.fromString(JSON.stringify(json));
  const cases = [];
  for (const text of texts) {
    const ids = (await t.encode(text, null, { addSpecialTokens: false })).getIds();
    const special = (await t.encode(text, null, { addSpecialTokens: true })).getIds();
    // The reference's Strip panics on a text that is shorter than what it strips.
    const decoded = ids.length ? await t.decode(ids, false) : '', skipped = ids.length ? await t.decode(ids, true) : '';
    cases.push([text, ids, special.join() === ids.join() ? null : special, decoded, skipped === decoded ? null : skipped]);
  }
  out.push(JSON.stringify({ name, tokenizer: json, cases }));
}
console.log(out.join('\n'));
