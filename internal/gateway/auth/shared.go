package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Bounds of a sharedTable.
const (
	maxSharedTokens = 10_000
	// maxShared is the maximum size of all tokens and rules as JSON in bytes. With the changes after a checkpoint they are
	// one message of a node, which has at most 16 MiB.
	maxShared = 6 << 20
	// sharedAge is the maximum age of tokens and rules while the log answers.
	sharedAge = time.Second
	// sharedStale is the maximum age while it does not. After it, callers get 503.
	sharedStale = 30 * time.Second
	// sharedWait is how long a request waits for a newer state, and sharedTimeout for one that must be new.
	sharedWait    = 300 * time.Millisecond
	sharedTimeout = 10 * time.Second
)

// sharedTable is an accessTable in a log. It reads the log when a request needs it, and not while there are none.
type sharedTable struct {
	log node.AccessLog
	now func() time.Time

	running sync.WaitGroup
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc

	mu      sync.Mutex
	reading *sharedRead
	begun   uint64 // the number of the latest read
	ended   uint64 // of the latest one that has ended
	good    uint64 // of that of content
	content tokenTable
	head    uint64
	at      time.Time // when the read of content began; zero: nothing was read
	err     error     // of the latest read
	failed  time.Time // when it ended with err
}

type sharedRead struct {
	at   time.Time // when it began
	done chan struct{}
}

func (s *sharedTable) table(ctx context.Context, fresh bool) (tokenTable, error) {
	t, _, err := s.get(ctx, fresh)
	return t, err
}

// get returns the content and its last record.
func (s *sharedTable) get(ctx context.Context, fresh bool) (tokenTable, uint64, error) {
	now, limit := s.now(), sharedWait
	needed := uint64(0) // of the reads: one that has not begun yet
	if fresh {
		limit = sharedTimeout
		s.mu.Lock()
		needed = s.begun + 1
		s.mu.Unlock()
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	for done := s.read(needed, now); done != nil; done = s.read(needed, now) {
		select {
		case <-done:
			continue
		case <-timeout.C:
		case <-ctx.Done():
			return tokenTable{}, 0, ctx.Err()
		}
		break
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.good < needed || s.at.Before(now.Add(-sharedStale)) {
		return tokenTable{}, 0, unavailable("the server cannot read its tokens and rules at present; try again later", s.err)
	}
	return s.content, s.head, nil
}

// read returns the end of a read of the log; nil: the content is recent enough, or the last read has just failed.
func (s *sharedTable) read(needed uint64, now time.Time) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := now.Add(-sharedAge)
	switch {
	case needed > 0 && s.ended >= needed,
		needed == 0 && (!s.at.Before(oldest) || s.err != nil && !s.failed.Before(oldest)):
		return nil
	case s.reading == nil && s.ctx.Err() != nil:
		return nil
	case s.reading == nil:
		s.begun++
		s.reading = &sharedRead{s.now(), make(chan struct{})}
		r, content, head := s.reading, s.content, s.head
		s.running.Go(func() { s.catchUp(r, content, head) })
	}
	return s.reading.done
}

// catchUp reads the records after head.
func (s *sharedTable) catchUp(r *sharedRead, content tokenTable, head uint64) {
	ctx, cancel := context.WithTimeout(s.ctx, sharedTimeout)
	defer cancel()
	records, err := s.log.ReadAccess(ctx, head)
	if err == nil && records.Checkpoint != nil {
		content, head = tokenTable{}, records.At
		err = json.Unmarshal(records.Checkpoint, &content)
	}
	for _, text := range records.Changes {
		var c accessChange
		if err == nil {
			err = json.Unmarshal(text, &c)
		}
		if err == nil && c.Mint == nil && c.Revoke == nil && c.Rules == nil && c.Forget == "" {
			err = fault.New(fault.Corrupt, "record %d of the access log is of a newer version: upgrade this server", head+1)
		}
		if err == nil {
			content.apply(&c)
			head++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading, s.ended = nil, s.begun
	if s.err = err; err == nil {
		s.content, s.head, s.at, s.good = content, head, r.at, s.begun
	} else {
		s.failed = s.now()
	}
	close(r.done)
}

// maxChangeTries is how often a change is derived again because another one was faster.
const maxChangeTries = 20

func (s *sharedTable) change(ctx context.Context, do func(*tokenTable) (*accessChange, error)) error {
	for range maxChangeTries {
		content, head, err := s.get(ctx, true)
		if err != nil {
			return err
		}
		c, err := do(&content)
		if err != nil || c == nil {
			return err
		}
		c.ID = rand.Text()
		text, err := json.Marshal(c)
		if err != nil {
			return err
		}
		if len(text) > maxAccessChange {
			return fault.New(fault.Invalid, "the change has %d bytes as JSON, the maximum is %d", len(text), maxAccessChange)
		}
		var checkpoint []byte
		if (head+1)%node.CheckpointEvery == 0 {
			if checkpoint, err = json.Marshal(content); err != nil {
				return err
			}
		}
		if _, err := content.encodeAfter(c, maxShared); err != nil {
			return err
		}
		won, err := s.log.AppendAccess(ctx, head, text, checkpoint)
		if err != nil {
			return fault.Wrap(fault.Deadline, "the result is unknown: list tokens or rules before you repeat the call", err)
		}
		if won {
			_, _, _ = s.get(ctx, true) // this gateway knows it now; the others look for it
			return nil
		}
	}
	return fault.Retry(fault.Aborted, fault.RetrySoon, "other changes of tokens and rules were faster; try again")
}

// sharedTokens authenticates callers by the tokens of a sharedTable.
type sharedTokens struct {
	*sharedTable
	source *source

	indexed sync.Mutex
	of      uint64 // the record of byHash
	byHash  map[[sha256.Size]byte]*token
}

// SharedTokens returns the authenticator of the tokens in a log. Others are asked about tokens that it does not know.
func (a *Access) SharedTokens(sources *Sources) Authenticator {
	t := &sharedTokens{sharedTable: a.content.(*sharedTable)}
	t.source = sources.add(SourceAccess, func() {
		_, err := t.table(context.Background(), false)
		t.source.report(err)
	})
	return t
}

func (t *sharedTokens) Accepts(c *Credential) bool { return c.Key == nil && isToken(c.Secret) }
func (t *sharedTokens) Configured() bool           { return true }

// Close ends the read of the log. Tokens and rules cannot be read afterwards.
func (t *sharedTokens) Close() error {
	t.mu.Lock()
	t.cancel() // no read begins from now on
	t.mu.Unlock()
	t.running.Wait()
	return nil
}

// Identify looks for news before it refuses a token.
func (t *sharedTokens) Identify(ctx context.Context, c *Credential) (Identity, error) {
	hash := hashToken(c.Secret)
	for _, fresh := range []bool{false, true} {
		content, head, err := t.get(ctx, fresh)
		if err != nil {
			return Identity{}, err
		}
		byHash, err := t.index(content, head)
		if err != nil {
			return Identity{}, unavailable("the server cannot read its tokens at present; try again later", err)
		}
		found := byHash[hash]
		switch {
		case found == nil || subtle.ConstantTimeCompare(found.hash[:], hash[:]) != 1:
		case !found.expires.IsZero() && !t.now().Before(found.expires):
			return Identity{}, errExpired
		default:
			return found.id, nil
		}
	}
	return Identity{}, notKnown(wrongToken())
}

func (t *sharedTokens) index(content tokenTable, head uint64) (byHash map[[sha256.Size]byte]*token, err error) {
	t.indexed.Lock()
	defer t.indexed.Unlock()
	if t.byHash == nil || t.of != head {
		if byHash, err = (&Tokens{}).open(content, true); err != nil {
			return nil, err
		}
		t.byHash, t.of = byHash, head
	}
	return t.byHash, nil
}
