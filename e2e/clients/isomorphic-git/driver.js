// Drives isomorphic-git. See ../../clients_test.go for the operations.
const fs = require('fs')
const git = require('isomorphic-git')
const http = require('isomorphic-git/http/node')

const [op, ...args] = process.argv.slice(2)
const common = { fs, http, remote: 'origin' }
const clone = options => git.clone({ ...common, url: args[0], dir: args[1], noCheckout: true, ...options })
const fetch = options => git.fetch({ ...common, dir: args[0], ...options })

const operations = {
  version: () => console.log(git.version()),
  'ls-remote': async () => {
    for (const ref of await git.listServerRefs({ http, url: args[0] })) console.log(`${ref.oid}\t${ref.ref}`)
  },
  clone: () => clone({ singleBranch: false }),
  fetch: () => fetch({ tags: true }),
  shallow: () => clone({ ref: 'main', singleBranch: true, depth: Number(args[2]), noTags: true }),
  deepen: () => fetch({ ref: 'main', singleBranch: true, depth: Number(args[1]), tags: false }),
  branch: () => clone({ ref: args[2], singleBranch: true, noTags: true }),
  push: async () => {
    const result = await git.push({ ...common, dir: args[0], url: args[1], ref: args[2], remoteRef: 'refs/heads/' + args[2] })
    if (!result.ok || Object.values(result.refs).some(ref => !ref.ok)) throw new Error(JSON.stringify(result))
  },
  tags: () => fetch({ tags: true }),
}

async function main() {
  if (!operations[op]) throw new Error(`isomorphic-git has nothing for ${op}`)
  await operations[op]()
}
main().catch(err => {
  console.error(err)
  process.exit(1)
})
