// Package replog keeps logs of numbered records in a bucket: one log for each repository, one for each name, and one of
// the tokens and rules that gateways share.
//
// # Log
//
// Record n is the state after the n-th change. It is created once, by a PUT with "If-None-Match: *", and never changed
// or deleted. That one PUT commits the change. Two nodes that try to write the same number race, and the store accepts
// one. The head is the record with the greatest number.
//
//	repos/ID/log/DOWN(n)       records of the repository ID (Record)
//	names/PATH!/DOWN(k)        records of the name PATH (Name): the repository that it refers to
//	access/log/DOWN(n)         changes of tokens and rules (Access)
//
// DOWN(n) is 2^62 - n in 16 hexadecimal digits, so that the newest record is the first in a listing. Numbers begin
// at 1.
//
// # Record
//
// A record is a JSON object of at most 256 KiB with sorted keys. Fields that are empty or zero are left out.
//
//	format          1
//	n               the number
//	txn             random ID of the attempt that wrote the record
//	parent          txn of record n-1; none in record 1
//	needs           features that a reader must know; a node that does not know one of them refuses the repository
//	kind, at, node  what changed, when, and which node wrote the record
//
// Record describes the other fields of a repository's record. Their names are pushes, names, head, config,
// object_format, quota, refs, packs, bytes, objects_epoch, gc, condemned and deleted.
//
// Fields of refs:
//
//	checkpoint            key of a packed-refs file with all refs
//	bytes, count, sha256  of the checkpoint: its size, the number of its refs, its checksum
//	tail                  changes after the checkpoint, oldest first
//	tail[].n              the record that made the changes
//	tail[].set            from the name of a ref to [old, new] or [old, new, peeled]; "-" means that there is none
//
// Fields of a pack:
//
//	key                    without ".pack"
//	bytes, sha256          of the pack
//	idx_bytes, idx_sha256  of its index
//	objects                number of objects
//	since                  the record that added it
//	extra                  files that maintenance made for it, each with ext, bytes and sha256
//
// A name's record also has path, state, id, from and renames: see Name.
//
// Strings can have any bytes. One that is not UTF-8, or begins with a quotation mark, is quoted as in Go, in ASCII.
// Unknown fields at the top level are kept in later records. Unknown fields elsewhere are refused. A new field that
// must be understood adds a word to needs.
//
// # Unclear answers
//
// A PUT without a clear answer may have been carried out, or be carried out later. Append is the only function that
// decides the result, by reading: the txn of record n identifies its writer. While no record has the number, Append
// writes the same bytes again. An attempt that cannot be decided is Unknown, which is not a failure: Settle continues.
//
// # Broken promises
//
// Parents make a chain. A record whose parent is not the txn of the record before proves that the store accepted two
// writers for one number, or lost a record: ErrBrokenPromise. The repository must not be changed any more.
package replog
