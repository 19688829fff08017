package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// tokens are the tokens of now: they follow their file. It is looked at for every token that comes (one system call),
// so that one which was revoked is refused from the next request on. A file that is gone, cannot be read, or is older
// than the one before it allows nobody: who knows what was revoked in it. The command that revokes the last token
// leaves a file that says so. Safe for concurrent use.
type tokens struct {
	file   TokenFile
	source *source
	now    func() time.Time

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*token
	seen   fs.FileInfo // of the file when it was read; nil: there was none, or it could not be read
	fresh  bool        // it was changed so shortly before it was read that the next change may look the same
	there  bool        // there was a file once
	last   int         // the highest number of a token that the file has named
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

func newTokens(file TokenFile, sources *Sources, now func() time.Time) *tokens {
	t := &tokens{file: file, now: now, written: readUsed(file.usedPath())}
	if t.written == nil {
		t.written = map[string]int64{}
	}
	t.source = sources.add(SourceTokens, func() { t.some() })
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
		return Identity{}, unavailable("the server cannot read its tokens just now; try again later", err)
	}
	// To find it by its hash takes a time that depends on the hash alone, from which nobody learns a token.
	if found == nil || subtle.ConstantTimeCompare(found.hash[:], hash[:]) != 1 {
		return Identity{}, wrongToken()
	}
	now := t.now()
	if !found.expires.IsZero() && !now.Before(found.expires) {
		return Identity{}, errExpired
	}
	if unix := now.Unix(); found.used.Load() != unix {
		found.used.Store(unix)
	}
	return found.id, nil
}

// unavailable is the error for callers about whom a source that fails would have decided.
func unavailable(msg string, err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: fault.RetryLater, Err: err}
}

// errExpired is the error for a token that was right once.
var errExpired = fault.New(fault.Unauthenticated, "this token has expired")

func wrongToken() error {
	return fault.New(fault.Unauthenticated, "wrong token, or one that was revoked")
}

// some reports whether there are tokens or were any: that the last one was revoked opens nothing. It is true if nobody
// knows.
func (t *tokens) some() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.follow()
	return t.last > 0 || len(t.byHash) > 0 || t.err != nil
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
	next := t.byHash
	if err == nil {
		next, err = t.open(table, seen != nil)
	}
	if err == nil {
		t.byHash, t.last, t.there = next, table.Last, t.there || seen != nil
	}
	t.seen, t.err, t.tried = seen, err, time.Now()
	t.fresh = seen != nil && time.Since(seen.ModTime()) < settles
	t.source.report(err)
}

func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}

// open makes a file's content ready for use, unless it is not what came after the content before. t.mu is held.
func (t *tokens) open(table tokenTable, exists bool) (map[[sha256.Size]byte]*token, error) {
	switch {
	case !exists && t.there:
		return nil, fmt.Errorf("the file of tokens %s is gone; put it back", t.file.path)
	case table.Last < t.last:
		return nil, fmt.Errorf("the file of tokens %s is older than the one before it (its latest token is number %d, and was %d): tokens that were revoked "+
			"since may be in it; put back the later one, or restart the server to accept it", t.file.path, table.Last, t.last)
	}
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
	if t.err != nil { // its directory may be another one
		t.mu.Unlock()
		return nil
	}
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
