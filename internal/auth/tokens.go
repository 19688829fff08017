package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Tokens authenticates callers by the access tokens in a TokenFile. It checks the file for each token (one system
// call), so that a revoked token is refused from the next request on. A file that is missing, unreadable or older than
// the previous one allows nobody in, because tokens in it may be revoked. The command that revokes the last token
// leaves a file without tokens. Safe for concurrent use.
type Tokens struct {
	file   TokenFile
	all    bool // every secret is a token
	source *source
	log    *slog.Logger
	now    func() time.Time

	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*token
	seen   fs.FileInfo // of the file when it was read; nil if it was missing or unreadable
	fresh  bool        // it changed shortly before it was read, so the next change may have the same time
	there  bool        // the file existed once
	last   int         // the highest number of a token in the file so far
	err    error       // of the latest attempt to read it
	tried  time.Time   // time of that attempt

	usedMu  sync.Mutex // held while the file is written
	written map[string]int64
}

// token is a valid token.
type token struct {
	id      Identity
	hash    [sha256.Size]byte
	expires time.Time
	used    atomic.Int64 // Unix time; zero means never
}

// retryInterval is the time between attempts to read a file that could not be read.
const retryInterval = time.Second

// clockResolution is the time after which the next change of a file surely has another modification time.
const clockResolution = 50 * time.Millisecond

// TokenOptions of Tokens.
type TokenOptions struct {
	File TokenFile
	All  bool // accept every secret, because no other authenticator does
	// Sources gets the file as an identity source.
	Sources *Sources
	Log     *slog.Logger
	Now     func() time.Time // nil means time.Now
}

// NewTokens starts to authenticate callers by tokens. Close ends it.
func NewTokens(o TokenOptions) *Tokens {
	if o.Now == nil {
		o.Now = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Tokens{file: o.File, all: o.All, log: o.Log, now: o.Now, written: readUsed(o.File.usedPath()), stop: stop}
	if t.written == nil {
		t.written = map[string]int64{}
	}
	t.source = o.Sources.add(SourceTokens, func() { t.Configured() })
	t.Configured() // remembers a file that exists, so that its loss is an error
	t.running.Go(func() { t.recordUse(ctx) })
	return t
}

// Close records the latest use of tokens.
func (t *Tokens) Close() error {
	t.stop()
	t.running.Wait()
	return nil
}

// recordInterval is the time between two records of the latest use of tokens.
const recordInterval = time.Minute

func (t *Tokens) recordUse(ctx context.Context) {
	tick := time.NewTicker(recordInterval)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-tick.C:
		}
		if err := t.writeUsed(); err != nil {
			t.log.Warn("cannot record the use of tokens", "error", err)
		}
	}
}

// Accepts reports whether the secret looks like a token, or may be a mistyped one because there are no other secrets.
func (t *Tokens) Accepts(c *Credential) bool {
	return c.Key == nil && (t.all || strings.HasPrefix(c.Secret, tokenPrefix))
}

// Identify returns the identity of a token.
func (t *Tokens) Identify(_ context.Context, c *Credential) (Identity, error) {
	return t.find(c.Secret)
}

// find returns the identity of a token. Errors: Unauthenticated, Unavailable if the file cannot be read.
func (t *Tokens) find(text string) (Identity, error) {
	if !isToken(text) {
		return Identity{}, wrongToken()
	}
	hash := hashToken(text)
	t.mu.Lock()
	t.follow()
	found, err := t.byHash[hash], t.err
	t.mu.Unlock()
	if err != nil {
		return Identity{}, unavailable("the server cannot read its tokens at present; try again later", err)
	}
	// The time of the look-up depends on the hash alone, which reveals nothing of the token.
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

// unavailable returns the error for callers whom a failing source would have identified.
func unavailable(msg string, err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: fault.RetryLater, Err: err}
}

// errExpired is the error for an expired token.
var errExpired = fault.New(fault.Unauthenticated, "this token has expired")

func wrongToken() error {
	return fault.New(fault.Unauthenticated, "wrong or revoked token")
}

// Configured reports whether there are or were tokens, or whether that is unknown. Revoking the last token does not
// make the server open.
func (t *Tokens) Configured() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.follow()
	return t.last > 0 || len(t.byHash) > 0 || t.err != nil
}

// follow reads the file again if it changed. t.mu is held.
func (t *Tokens) follow() {
	if t.err != nil && time.Since(t.tried) < retryInterval {
		return
	}
	info, err := os.Stat(t.file.path)
	if err != nil {
		info = nil // the read below reports why
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
	t.fresh = seen != nil && time.Since(seen.ModTime()) < clockResolution
	t.source.report(err)
}

func sameFile(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime()) && a.Mode() == b.Mode()
}

// open prepares the content of a file for use. It fails if the file is missing or older than the previous one. t.mu is
// held.
func (t *Tokens) open(table tokenTable, exists bool) (map[[sha256.Size]byte]*token, error) {
	switch {
	case !exists && t.there:
		return nil, fmt.Errorf("the token file %s is missing: restore it", t.file.path)
	case table.Last < t.last:
		return nil, fmt.Errorf("the token file %s is older than before (its latest token is number %d, and was %d): it "+
			"may contain revoked tokens; "+
			"restore the newer file, or restart the server to accept this one", t.file.path, table.Last, t.last)
	}
	next := make(map[[sha256.Size]byte]*token, len(table.Tokens))
	for _, from := range table.Tokens {
		one := &token{expires: from.Expires}
		hash, err := hex.DecodeString(from.Hash)
		if err != nil || copy(one.hash[:], hash) != len(one.hash) {
			return nil, fault.New(fault.Invalid, "token %.80q: invalid hash", from.ID)
		}
		grant := &Grant{}
		if grant.Operation, err = ParseOperation(from.Scope); err == nil {
			grant.Repositories, err = ParsePatterns(from.Repositories)
		}
		if err == nil {
			err = CheckName(from.Name)
		}
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, "token "+strconv.Quote(from.ID), err)
		}
		one.id = Identity{Name: from.Name, By: ByToken, Credential: from.ID, Grant: grant}
		if old := t.byHash[one.hash]; old != nil {
			one.used.Store(old.used.Load())
		}
		next[one.hash] = one
	}
	return next, nil
}

// writeUsed records the latest use of each token, if it changed.
func (t *Tokens) writeUsed() error {
	t.usedMu.Lock()
	defer t.usedMu.Unlock()
	changed, now := false, map[string]int64{}
	t.mu.Lock()
	if t.err != nil { // the directory may be a different one
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
	for id, at := range readUsed(t.file.usedPath()) { // other servers may use the same file
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
