package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// tokens are the tokens of now: they follow their file. It is looked at for every token that comes (one system call), so that one which was
// revoked is refused from the next request on. A file that cannot be read allows nobody: who knows what was revoked in it. Safe for concurrent
// use.
type tokens struct {
	file TokenFile
	log  *slog.Logger
	now  func() time.Time

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*token
	seen   fs.FileInfo // of the file when it was read; nil: there was none, or it could not be read
	fresh  bool        // it was changed so shortly before it was read that the next change may look the same
	made   bool        // there was a token once
	err    error       // of the last attempt to read it
	tried  time.Time   // when that was

	usedMu  sync.Mutex // one writes at a time
	written map[string]int64
}

// token is one that may be used.
type token struct {
	id      Identity
	hash    [sha256.Size]byte
	expires time.Time
	used    atomic.Int64 // Unix time; 0: never
}

// retryEvery is how soon a file that could not be read is read again.
const retryEvery = time.Second

// settles is how old a change has to be for the clock of a file system to tell it from the next.
const settles = 50 * time.Millisecond

func newTokens(file TokenFile, log *slog.Logger, now func() time.Time) *tokens {
	t := &tokens{file: file, log: log, now: now, written: readUsed(file.usedPath())}
	if t.written == nil {
		t.written = map[string]int64{}
	}
	return t
}

// find tells whom a token proves. Errors: Unauthenticated, Unavailable if the file cannot be read.
func (t *tokens) find(text string) (Identity, error) {
	if !isToken(text) {
		return Identity{}, wrongToken()
	}
	hash := hashToken(text)
	t.mu.Lock()
	t.follow()
	found, err := t.byHash[hash], t.err
	t.mu.Unlock()
	if err != nil {
		return Identity{}, fault.Wrap(fault.Unavailable, "the server cannot read its tokens; its log says more", err)
	}
	// To find it by its hash takes a time that depends on the hash alone, from which nobody learns a token.
	if found == nil || subtle.ConstantTimeCompare(found.hash[:], hash[:]) != 1 {
		return Identity{}, wrongToken()
	}
	now := t.now()
	if !found.expires.IsZero() && !now.Before(found.expires) {
		return Identity{}, fault.New(fault.Unauthenticated, "this token has expired")
	}
	if unix := now.Unix(); found.used.Load() != unix {
		found.used.Store(unix)
	}
	return found.id, nil
}

func wrongToken() error {
	return fault.New(fault.Unauthenticated, "wrong token, or one that was revoked")
}

// some tells whether there are tokens or were any: that the last one was revoked opens nothing. Yes if nobody knows.
func (t *tokens) some() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.follow()
	return t.made || len(t.byHash) > 0 || t.err != nil
}

// follow reads the file again if it changed. t.mu is held.
func (t *tokens) follow() {
	if t.err != nil && time.Since(t.tried) < retryEvery {
		return
	}
	info, err := os.Stat(t.file.path)
	if err != nil {
		info = nil // reading it tells why, if it is there at all
	}
	if t.byHash != nil && t.err == nil && !t.fresh && sameFile(t.seen, info) {
		return
	}
	table, seen, err := t.file.read()
	next := map[[sha256.Size]byte]*token{}
	if err == nil {
		next, err = t.open(table)
	}
	if err != nil && (t.err == nil || t.err.Error() != err.Error()) {
		t.log.Error("cannot read the tokens: callers with a token are refused until it works", "error", err)
	}
	t.byHash, t.made, t.seen, t.err, t.tried = next, table.Last > 0, seen, err, time.Now()
	t.fresh = seen != nil && time.Since(seen.ModTime()) < settles
}

func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}

// open makes a file's content ready for use. t.mu is held.
func (t *tokens) open(table tokenTable) (map[[sha256.Size]byte]*token, error) {
	next := make(map[[sha256.Size]byte]*token, len(table.Tokens))
	for _, from := range table.Tokens {
		one := &token{expires: from.Expires}
		hash, err := hex.DecodeString(from.Hash)
		if err != nil || copy(one.hash[:], hash) != len(one.hash) {
			return nil, fault.New(fault.Invalid, "the hash of the token %.80q is none", from.ID)
		}
		grant := &Grant{}
		if grant.Operation, err = ParseOperation(from.Scope); err == nil {
			grant.Repositories, err = ParsePatterns(from.Repositories)
		}
		if err == nil {
			err = CheckName(from.Name)
		}
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, "the token "+strconv.Quote(from.ID), err)
		}
		one.id = Identity{Name: from.Name, By: ByToken, Credential: from.ID, Grant: grant}
		if old := t.byHash[one.hash]; old != nil {
			one.used.Store(old.used.Load())
		}
		next[one.hash] = one
	}
	return next, nil
}

// writeUsed writes down when tokens were last used, if that changed.
func (t *tokens) writeUsed() error {
	t.usedMu.Lock()
	defer t.usedMu.Unlock()
	changed, now := false, map[string]int64{}
	t.mu.Lock()
	for _, one := range t.byHash {
		at := max(one.used.Load(), t.written[one.id.Credential])
		if at > 0 {
			now[one.id.Credential] = at
		}
		changed = changed || at != t.written[one.id.Credential]
	}
	t.mu.Unlock()
	if !changed {
		return nil
	}
	for id, at := range readUsed(t.file.usedPath()) { // other servers may follow the same file
		if mine, there := now[id]; there {
			now[id] = max(mine, at)
		}
	}
	var text []byte
	for _, id := range slices.Sorted(maps.Keys(now)) {
		text = strconv.AppendInt(append(append(text, id...), ' '), now[id], 10)
		text = append(text, '\n')
	}
	if err := replaceFile(t.file.usedPath(), text, false); err != nil {
		return err
	}
	t.written = now
	return nil
}
