// Reads documents that TestDocuments wrote, and asks XGrammar whether its grammar of the same schema takes
// them, and whether ours takes no less: a document that is cut or changed must be refused by both.
//   npm i @mlc-ai/web-xgrammar && node compare.mjs DOCUMENTS
import { createInterface } from "node:readline";
import { createReadStream, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname } from "node:path";

// The package says that it is a module, and is none.
const require = createRequire(import.meta.url);
const path = require.resolve("@mlc-ai/web-xgrammar");
const loaded = { exports: {} };
new Function("module", "exports", "require", "__filename", "__dirname", readFileSync(path, "utf8"))(loaded, loaded.exports, require, path, dirname(path));
const { Grammar, Testings } = loaded.exports;

let schemas = 0, refused = 0, taken = 0, not = [], cuts = 0;
for await (const line of createInterface({ input: createReadStream(process.argv[2]) })) {
	const { name, schema, documents } = JSON.parse(line);
	let grammar;
	try {
		// at most one blank between tokens, members that are not named allowed
		grammar = await Grammar.fromJSONSchema(JSON.stringify(schema), true, undefined, undefined, false);
	} catch (error) {
		refused++;
		continue;
	}
	schemas++;
	for (const text of documents ?? []) {
		if (await Testings.isGrammarAcceptString(grammar, text)) taken++;
		else not.push(`${name}: ${JSON.stringify(schema).slice(0, 200)}: ${text.slice(0, 200)}`);
		if (await Testings.isGrammarAcceptString(grammar, text.slice(0, -1)) && !/^-?[0-9.]+$/.test(text)) cuts++;
	}
	grammar.dispose();
}
console.log(`${schemas} schemas, ${refused} that XGrammar refuses; it takes ${taken} of ${taken + not.length} documents; ${cuts} that were cut`);
for (const one of not.slice(0, 80)) console.log(one);
