package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// Tokens authenticates callers by the access tokens in a TokenFile. It checks the file for each token (one system
// call), so that a revoked token is refused from the next request on. While the file is missing, unreadable or older
// than the previous one, no token is accepted, because tokens in it may be revoked. The command that revokes the last
// token leaves a file without tokens. Safe for concurrent use.
type Tokens struct {
	file   TokenFile
	all    bool // every secret is a token
	source *source
	log    *slog.Logger
	now    func() time.Time

	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	watcher credfile.Watcher
	byHash  map[[sha256.Size]byte]*token
	existed bool  // the file existed once
	last    int   // the highest number of a token in the file so far
	err     error // of the latest attempt to read it

	usedMu   sync.Mutex       // held while the file of uses is written
	recorded map[string]int64 // content of that file: Unix times by the ID of the token
}

// token is a valid token.
type token struct {
	id      Identity
	hash    [sha256.Size]byte
	expires time.Time
	used    atomic.Int64 // Unix time; zero means never
}

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
	t := &Tokens{
		file: o.File, all: o.All, log: o.Log, now: o.Now, recorded: readUsed(o.File.usedPath()), stop: stop,
		watcher: credfile.Watcher{Paths: []string{o.File.path}},
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

// Identify returns the identity of a token. Errors: Unauthenticated, Unavailable if the file cannot be read.
func (t *Tokens) Identify(_ context.Context, c *Credential) (Identity, error) {
	if !isToken(c.Secret) {
		return Identity{}, wrongToken()
	}
	hash := hashToken(c.Secret)
	t.mu.Lock()
	t.reload()
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

// unavailable returns the error for callers of a failing source.
func unavailable(msg string, err error) error {
	return &fault.Error{Kind: fault.Unavailable, Msg: msg, RetryAfter: fault.RetryLater, Err: err}
}

// errExpired is the error for an expired token.
var errExpired = genuine(fault.New(fault.Unauthenticated, "this token has expired"))

func wrongToken() error {
	return fault.New(fault.Unauthenticated, "wrong or revoked token (tokens of other servers do not count here)")
}

// Configured reports whether there are or were tokens, or whether that is unknown. Revoking the last token does not
// make the server open.
func (t *Tokens) Configured() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reload()
	return t.last > 0 || len(t.byHash) > 0 || t.err != nil
}

// reload reads the file again if necessary. t.mu is held.
func (t *Tokens) reload() {
	if read, _ := t.watcher.Check(t.now()); !read {
		return
	}
	table, exists, err := t.file.read()
	var byHash map[[sha256.Size]byte]*token
	if err == nil {
		byHash, err = t.open(table, exists)
	}
	if err == nil {
		t.byHash, t.last, t.existed = byHash, table.Last, t.existed || exists
	} else {
		t.watcher.Retry()
	}
	t.err = err
	t.source.report(err)
}

// open prepares the content of a file for use. It fails if the file is missing or older than the previous one. t.mu is
// held.
func (t *Tokens) open(table tokenTable, exists bool) (map[[sha256.Size]byte]*token, error) {
	switch {
	case !exists && t.existed:
		return nil, fmt.Errorf("token file %s: it is missing: restore it", t.file.path)
	case table.Last < t.last:
		return nil, fmt.Errorf("token file %s: it is older than the previous one and may contain revoked tokens (latest "+
			"token %d, previously %d): restore the newer file, or restart the server",
			t.file.path, table.Last, t.last)
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
			grant.Refs, err = node.ParseRefPatterns(from.Refs)
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
	if t.err != nil { // the directory may have been replaced
		t.mu.Unlock()
		return nil
	}
	for _, one := range t.byHash {
		at := max(one.used.Load(), t.recorded[one.id.Credential])
		if at > 0 {
			now[one.id.Credential] = at
		}
		changed = changed || at != t.recorded[one.id.Credential]
	}
	t.mu.Unlock()
	if !changed {
		return nil
	}
	for id, at := range readUsed(t.file.usedPath()) { // other servers may use the same file
		if own, ok := now[id]; ok {
			now[id] = max(own, at)
		}
	}
	var text []byte
	for _, id := range slices.Sorted(maps.Keys(now)) {
		text = strconv.AppendInt(append(append(text, id...), ' '), now[id], 10)
		text = append(text, '\n')
	}
	if err := t.file.write(t.file.usedPath(), text); err != nil {
		return err
	}
	t.recorded = now
	return nil
}
