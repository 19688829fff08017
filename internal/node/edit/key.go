package edit

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pack"
	"github.com/packhorse-git/packhorse/internal/node/write"
)

const (
	maxKey     = 128    // bytes of an idempotency key
	maxHistory = 10_000 // commits that are searched for a key
)

// keyHeader is the keyword of the line with a Key in the header of a commit: "packhorse-request KEY REQUEST", two
// SHA-256 hashes in hexadecimal.
const keyHeader = "packhorse-request "

// Key identifies the request that made a commit. The zero value stands for no key.
type Key struct{ key, request [sha256.Size]byte }

// NewKey returns the Key of an idempotency key and the request that has it. An empty key returns the zero value.
func NewKey(key string, request []byte) (Key, error) {
	if key == "" {
		return Key{}, nil
	}
	if len(key) > maxKey {
		return Key{}, fault.InField("idempotency_key", fault.New(fault.Invalid, "it has %d bytes, and at most %d are allowed",
			len(key), maxKey))
	}
	return Key{sha256.Sum256([]byte(key)), sha256.Sum256(request)}, nil
}

// line returns the line of the header, or "".
func (k Key) line() string {
	if k == (Key{}) {
		return ""
	}
	return keyHeader + hex.EncodeToString(k.key[:]) + " " + hex.EncodeToString(k.request[:]) + "\n"
}

// keyOf returns the Key in a commit, or the zero value.
func keyOf(commit []byte) (k Key) {
	header, _, _ := bytes.Cut(commit, []byte("\n\n"))
	at := bytes.Index(header, []byte("\n"+keyHeader))
	if at < 0 {
		return k
	}
	line, _, _ := bytes.Cut(header[at+1+len(keyHeader):], []byte{'\n'})
	key, request, _ := bytes.Cut(line, []byte{' '})
	if len(key) != 2*sha256.Size || len(request) != 2*sha256.Size {
		return Key{}
	}
	_, err1 := hex.Decode(k.key[:], key)
	_, err2 := hex.Decode(k.request[:], request)
	if err1 != nil || err2 != nil {
		return Key{}
	}
	return k
}

// Keys finds the commits of earlier requests. It remembers the keys of the branches that were searched last, because
// reading the latest 10,000 commits takes half a second. It is safe for concurrent use.
type Keys struct {
	branches *lru.Cache[branchName, *branchKeys]
}

type branchName struct {
	incarnation string // of the repository
	branch      git.RefName
}

// maxBranches is the maximum number of branches whose keys are remembered. Each can have 1 MB of them.
const maxBranches = 32

// NewKeys returns a Keys without memory.
func NewKeys() *Keys {
	branches, _ := lru.New[branchName, *branchKeys](maxBranches) // the size is valid
	return &Keys{branches}
}

// branchKeys are the keys of a branch.
type branchKeys struct {
	mu    sync.Mutex
	head  git.ObjectID // the keys of this commit and of its history are known
	known []knownKey   // the latest commit is the last one
}

type knownKey struct {
	Key
	commit git.ObjectID
}

// Find returns the commit with a key among the latest 10,000 of a branch, by first parents from its head. It returns
// the zero ID if there is none. The error is Invalid if another request has the key.
func (k *Keys) Find(ctx context.Context, s write.State, branch git.RefName, head git.ObjectID, key Key) (
	commit git.ObjectID, err error) {
	if key == (Key{}) || head.IsZero() {
		return git.ObjectID{}, nil
	}
	name := branchName{s.Repo().Incarnation, branch}
	b, ok := k.branches.Get(name)
	if !ok {
		b = new(branchKeys)
		k.branches.Add(name, b)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.update(ctx, s, head); err != nil {
		return git.ObjectID{}, err
	}
	for _, known := range slices.Backward(b.known) {
		switch {
		case known.key != key.key:
		case known.request != key.request:
			return git.ObjectID{}, fault.InField("idempotency_key", fault.New(fault.Invalid,
				"another request with this key has made the commit %s: use a new key", known.commit))
		default:
			return known.commit, nil
		}
	}
	return git.ObjectID{}, nil
}

// update adds the keys of the commits from head to the last known one. If that is not in the history of head any more,
// it reads all again.
func (b *branchKeys) update(ctx context.Context, s write.State, head git.ObjectID) error {
	var found []knownKey // the latest one first
	isKnown := false
	for id, n := head, 0; n < maxHistory; n++ {
		if isKnown = id == b.head; isKnown {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		typ, data, err := s.Read(id, 0)
		if fault.Is(err, fault.NotFound) && n > 0 { // the repository is shallow
			break
		} else if err != nil {
			return err
		}
		if typ != git.Commit {
			break
		}
		commit, err := pack.ParseCommit(data, id.Format())
		if err != nil {
			return err
		}
		if key := keyOf(data); key != (Key{}) {
			found = append(found, knownKey{key, id})
		}
		if len(commit.Parents) == 0 {
			break
		}
		id = commit.Parents[0]
	}
	if !isKnown {
		b.known = nil
	}
	slices.Reverse(found)
	b.known = append(b.known, found...)
	b.known = slices.Clip(b.known[max(0, len(b.known)-maxHistory):])
	b.head = head
	return nil
}
