package auth

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/transport/credfile"
)

// RuleSet is a set of rules as data (RuleService). It applies after the rules of the configuration.
type RuleSet struct {
	Version uint64      `json:"version"` // grows by one with each change; 0: never set
	Groups  []GroupSpec `json:"groups,omitempty"`
	Rules   []RuleSpec  `json:"rules,omitempty"`
}

// Limits of the size as JSON, in bytes.
const (
	maxToken        = 64 << 10
	maxRuleSet      = 128 << 10
	maxAccessChange = maxRuleSet + 4<<10
)

// encodeAfter returns the encoded content after a change. It refuses a change after which there are more than limit
// bytes, except for one that removes tokens.
func (t *tokenTable) encodeAfter(c *accessChange, limit int) ([]byte, error) {
	t.apply(c)
	t.Version = t.needs()
	text, err := json.MarshalIndent(t, "", " ")
	if err == nil && len(text) > limit && c.Revoke == nil {
		err = fault.New(fault.Exhausted, "all tokens and rules would have %d bytes, the maximum is %d: revoke some "+
			"tokens, or use fewer patterns", len(text), limit)
	}
	return append(text, '\n'), err
}

// Parse parses the rules.
func (s *RuleSet) Parse() ([]Rule, error) {
	return ParseRules(s.Groups, s.Rules, func(i int) string { return "stored rule " + strconv.Itoa(i+1) })
}

// accessChange is one change of the access data. It has one of the fields besides ID.
type accessChange struct {
	ID     string   `json:"id"` // random
	Mint   *Token   `json:"mint,omitempty"`
	Revoke []string `json:"revoke,omitempty"` // IDs of tokens
	Rules  *RuleSet `json:"rules,omitempty"`
	Forget string   `json:"forget,omitempty"` // a user
}

// current returns a copy of the tokens without those that expired more than a day ago.
func (t *tokenTable) current(now time.Time) []Token {
	return slices.DeleteFunc(slices.Clone(t.Tokens), func(one Token) bool {
		return !one.Expires.IsZero() && now.Sub(one.Expires) > 24*time.Hour
	})
}

// apply makes a change. It does not change slices that t shares with its copies.
func (t *tokenTable) apply(c *accessChange) {
	switch {
	case c.Mint != nil:
		t.Last++
		t.Tokens = append(t.current(c.Mint.Created), *c.Mint)
	case c.Revoke != nil:
		revoked := make(map[string]bool, len(c.Revoke))
		for _, id := range c.Revoke {
			revoked[id] = true
		}
		t.Tokens = slices.DeleteFunc(slices.Clone(t.Tokens), func(one Token) bool { return revoked[one.ID] })
	case c.Rules != nil:
		t.Rules = *c.Rules
	case c.Forget != "":
		t.Forgotten++
		t.Forget = c.Forget
	}
}

// accessTable is where tokens and rules are. It is safe for concurrent use.
type accessTable interface {
	// table returns the present content. fresh excludes a state from before the call.
	table(ctx context.Context, fresh bool) (tokenTable, error)
	// change makes a change that do derives from the present content; nil: none. It is durable when change returns. do can
	// be called again.
	change(ctx context.Context, do func(*tokenTable) (*accessChange, error)) error
}

// Access has the tokens and the rules that are managed while servers run. Safe for concurrent use.
type Access struct {
	content accessTable
	now     func() time.Time
}

// AccessInFile returns the access data in a file, which may not exist.
func AccessInFile(f TokenFile) *Access { return &Access{&watchedFile{TokenFile: f}, time.Now} }

// AccessInLog returns the access data in the log of a store.
func AccessInLog(log node.AccessLog) *Access {
	t := &sharedTable{log: log, now: time.Now}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	return &Access{t, time.Now}
}

// IsShared reports whether the data are in a store.
func (a *Access) IsShared() bool {
	_, ok := a.content.(*sharedTable)
	return ok
}

// Mint creates a token. A name may have several tokens, so that a new one can replace an old one. The secret is not
// stored. The error is Invalid for an invalid request, Exhausted if there are too many tokens, and
// Precondition if the name has too many.
func (a *Access) Mint(ctx context.Context, r TokenRequest) (secret string, token Token, err error) {
	if err := r.check(a.now()); err != nil {
		return "", token, err
	}
	most := maxTokens
	if a.IsShared() {
		most = maxSharedTokens
	}
	secret = newToken()
	hash := hashToken(secret)
	err = a.content.change(ctx, func(t *tokenTable) (*accessChange, error) {
		if len(t.current(a.now())) >= most {
			return nil, fault.New(fault.Exhausted, "there are %d tokens, the maximum: revoke some", most)
		}
		own := 0
		for _, one := range t.Tokens {
			if one.Name == r.Name && (one.Expires.IsZero() || a.now().Before(one.Expires)) {
				own++
			}
		}
		if r.Most > 0 && own >= r.Most {
			return nil, fault.New(fault.Precondition, "you have %d access tokens, the maximum: revoke one first", own)
		}
		token = Token{
			ID: r.Name + "/" + strconv.Itoa(t.Last+1), Name: r.Name, Hash: hex.EncodeToString(hash[:]),
			Scope: r.Scope.String(), Repositories: r.Repositories, Refs: r.Refs,
			Created: a.now().UTC().Truncate(time.Second), Expires: r.Expires.UTC().Truncate(time.Second),
		}
		if text, err := json.Marshal(token); err != nil || len(text) > maxToken {
			return nil, fault.New(fault.Invalid, "the token has %d bytes as JSON, the maximum is %d: use fewer patterns, such "+
				"as team/**", len(text), maxToken)
		}
		return &accessChange{Mint: &token}, nil
	})
	if err != nil {
		secret = ""
	}
	return secret, token, err
}

// Revoke removes the token with an ID, or all tokens with a name, and returns them. The error is NotFound if there are
// none.
func (a *Access) Revoke(ctx context.Context, which string) (revoked []Token, err error) {
	err = a.content.change(ctx, func(t *tokenTable) (*accessChange, error) {
		revoked = nil
		c := &accessChange{}
		for _, one := range t.Tokens {
			if one.ID == which || one.Name == which {
				revoked, c.Revoke = append(revoked, one), append(c.Revoke, one.ID)
			}
		}
		if len(revoked) == 0 {
			return nil, fault.New(fault.NotFound, "no token %.80q: \"packhorse token list\" shows all tokens", which)
		}
		return c, nil
	})
	return revoked, err
}

// List returns all tokens, sorted by name. It fails if the file is lost.
func (a *Access) List(ctx context.Context) ([]Token, error) {
	if f, ok := a.content.(*watchedFile); ok {
		return f.list()
	}
	t, err := a.content.table(ctx, true)
	byName := func(a, b Token) int { return cmp.Compare(a.Name, b.Name) }
	return slices.SortedStableFunc(slices.Values(t.Tokens), byName), err
}

// Rules returns the rules, which change must not change.
func (a *Access) Rules(ctx context.Context, fresh bool) (RuleSet, error) {
	t, err := a.content.table(ctx, fresh)
	return t.Rules, err
}

// SetRules replaces the rules if their version is the expected one. The error is Aborted if it is not, and Invalid for
// rules that are invalid or too large.
func (a *Access) SetRules(ctx context.Context, set RuleSet, expected uint64) (RuleSet, error) {
	if _, err := set.Parse(); err != nil {
		return set, err
	}
	if text, err := json.Marshal(set); err != nil || len(text) > maxRuleSet {
		return set, fault.New(fault.Invalid, "the rules have %d bytes as JSON, the maximum is %d: use groups and patterns",
			len(text), maxRuleSet)
	}
	err := a.content.change(ctx, func(t *tokenTable) (*accessChange, error) {
		if t.Rules.Version != expected {
			return nil, fault.New(fault.Aborted, "the rules have version %d, not %d: read them, and repeat the change",
				t.Rules.Version, expected)
		}
		set.Version = expected + 1
		return &accessChange{Rules: &set}, nil
	})
	return set, err
}

// watchedFile is a TokenFile whose content is in memory.
type watchedFile struct {
	TokenFile
	mu      sync.Mutex
	watcher credfile.Watcher
	known   tokenTable
	err     error // nothing was read yet
	loaded  bool
}

// table keeps the known content while the file cannot be read: tokens have a check of their own. Older rules, as from a
// backup, are an error until the server is restarted.
func (f *watchedFile) table(context.Context, bool) (tokenTable, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watcher.Paths = []string{f.path}
	if read, _ := f.watcher.Check(time.Now()); read || f.err != nil {
		t, exists, err := f.read()
		was, now := f.known.Rules, t.Rules
		if exists && err == nil && f.loaded && now.Version <= was.Version && !reflect.DeepEqual(now, was) {
			err = fmt.Errorf("token file %s: its rules are older than the previous ones (version %d, previously %d): restore "+
				"the newer file, or restart the server", f.path, now.Version, was.Version)
			f.err = err
		}
		switch {
		case err == nil && (exists || !f.loaded):
			f.known, f.err, f.loaded = t, nil, true
		case err != nil && !f.loaded:
			f.err = err
		}
		if err != nil {
			f.watcher.Retry()
		}
	}
	return f.known, f.err
}
