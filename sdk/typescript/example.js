// Makes a repository with two branches, and merges them: example.js URL [SECRET]
import { createHash } from 'node:crypto'
import { Node, faultOf } from 'packhorse'

const node = new Node(...process.argv.slice(2))
const { repository } = await node.repositories.create({ repository: 'typescript/app' })
const app = repository.path
const commit = (branch, path, text, options = {}) =>
  node.commits.create({
    repository: app, branch, message: `Add ${path}`, author: { name: 'Ada', email: 'ada@example.com' },
    changes: [{ change: { case: 'put', value: { path, source: { case: 'text', value: text } } } }], ...options,
  })

const first = await commit('main', 'a.txt', 'hello\n', { create: true })
await commit('topic', 'b.txt', 'b\n', { create: true, start: 'main' })
await commit('main', 'c.txt', 'c\n')
for await (const { part } of node.diffs.patch({ repository: app, from: 'main', to: 'topic', mergeBase: true })) {
  if (part.case === 'file') process.stdout.write(part.value.patch)
}
const merged = await node.merges.merge({ repository: app, target: 'main', source: 'topic' })
console.log('merged', merged.commit, merged.conflicts.length)
const hash = createHash('sha256')
let expected
for await (const { header, data } of node.archives.archive({ repository: app, revision: 'main', format: 'tar' })) {
  expected ??= header.sha256
  hash.update(data)
}
console.log('archive', hash.digest('hex') === expected)
try {
  await commit('main', 'a.txt', 'again\n', { expectedHead: first.commit })
} catch (error) {
  console.log('moved', faultOf(error).mismatches[0].actual === merged.commit)
}
node.close()
