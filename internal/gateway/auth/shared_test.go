package auth

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/gittest"
	"github.com/packhorse-git/packhorse/internal/node"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// memoryLog is a node.AccessLog without a bucket.
type memoryLog struct {
	mu         sync.Mutex
	changes    [][]byte
	checkpoint []byte
	covers     uint64
	reads      int
	err        error
}

func (l *memoryLog) ReadAccess(_ context.Context, after uint64) (node.AccessRecords, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	found := node.AccessRecords{}
	if l.covers > after {
		found.Checkpoint, found.At, after = l.checkpoint, l.covers, l.covers
	}
	found.Changes = l.changes[after:]
	return found, l.err
}

func (l *memoryLog) AppendAccess(_ context.Context, head uint64, change, checkpoint []byte) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || uint64(len(l.changes)) != head {
		return false, l.err
	}
	l.changes = append(l.changes, change)
	if checkpoint != nil {
		l.checkpoint, l.covers = checkpoint, head
	}
	return true, nil
}

func (l *memoryLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
}

// sharedWorld is one gateway of a log.
func sharedWorld(l node.AccessLog) (*Access, Authenticator, *Auth) {
	access, metrics := AccessInLog(l), NewMetrics(nil)
	sources := NewSources(metrics, discard)
	tokens := access.SharedTokens(sources)
	return access, tokens, New(Options{Authenticators: []Authenticator{tokens}, Access: access, Metrics: metrics,
		Sources: sources, Log: discard})
}

// TestSharedTokens checks what two gateways of one log know, and when.
func TestSharedTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &memoryLog{}
		one, _, _ := sharedWorld(log)
		_, tokens, other := sharedWorld(log)
		use := func(secret string) error {
			_, err := tokens.Identify(t.Context(), &Credential{Scheme: "bearer", Secret: secret})
			return err
		}
		if err := use(newToken()); !fault.Is(err, fault.Unauthenticated) {
			t.Fatalf("an unknown token: %v", err)
		}
		secret, token, err := one.Mint(t.Context(), TokenRequest{Name: "bot", Scope: Write})
		if err != nil || use(secret) != nil { // the other gateway reads the log at once
			t.Fatal(err, use(secret))
		}
		if _, err := one.Revoke(t.Context(), "bot"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(sharedAge + 1)
		if err := use(secret); !fault.Is(err, fault.Unauthenticated) {
			t.Errorf("a token that was revoked a second ago: %v", err)
		}
		// one read for all requests of a second, and none without requests
		secret, token, _ = one.Mint(t.Context(), TokenRequest{Name: "bot", Scope: Write})
		if token.ID != "bot/2" {
			t.Errorf("the second token has the ID %s", token.ID)
		}
		_ = use(secret)
		before := log.reads
		for range 100 {
			if err := use(secret); err != nil {
				t.Fatal(err)
			}
			time.Sleep(sharedAge / 20)
		}
		if n := log.reads - before; n > 6 {
			t.Errorf("%d reads in five seconds", n)
		}
		before = log.reads
		time.Sleep(time.Hour)
		if log.reads != before {
			t.Error("the log was read without a request")
		}
		// an outage
		_ = use(secret)
		log.fail(errors.New("the bucket is away"))
		time.Sleep(sharedStale - time.Second)
		if err := use(secret); err != nil {
			t.Errorf("a known token during an outage of 29 s: %v", err)
		}
		if err := use(newToken()); !fault.Is(err, fault.Unavailable) {
			t.Errorf("an unknown token during an outage: %v, want unavailable, so that git keeps it", err)
		}
		time.Sleep(2 * time.Second)
		repo := repoPath(t, "team/app")
		if err := use(secret); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a known token during an outage of 31 s: %v", err)
		}
		if err := other.May(t.Context(), Identity{Name: "bot", By: ByKey}, repo, Read); !fault.Is(err, fault.Unavailable) {
			t.Errorf("rules during an outage of 31 s: %v", err)
		}
		if _, _, err := one.Mint(t.Context(), TokenRequest{Name: "x"}); err == nil {
			t.Error("a token was made during an outage")
		}
		log.fail(nil)
		time.Sleep(sharedAge + 1)
		if err := use(secret); err != nil {
			t.Errorf("after an outage: %v", err)
		}
		// a change of a newer version must not be ignored
		log.changes = append(log.changes, []byte(`{"id":"x","lock":true}`))
		time.Sleep(sharedStale + sharedAge)
		if err := use(secret); !fault.Is(err, fault.Unavailable) {
			t.Errorf("after a change that this version does not know: %v", err)
		}
	})
}

// TestSharedCheckpoint checks that a gateway that starts later knows the same.
func TestSharedCheckpoint(t *testing.T) {
	t.Parallel()
	log := &memoryLog{}
	one, _, _ := sharedWorld(log)
	var secrets []string
	for range 3 * node.CheckpointEvery {
		secret, _, err := one.Mint(t.Context(), TokenRequest{Name: "bot"})
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	if _, err := one.Revoke(t.Context(), "bot/1"); err != nil {
		t.Fatal(err)
	}
	if log.covers == 0 || uint64(len(log.changes))-log.covers > node.CheckpointEvery {
		t.Fatalf("%d changes, of which the checkpoint has %d", len(log.changes), log.covers)
	}
	_, tokens, _ := sharedWorld(log)
	for i, secret := range secrets {
		_, err := tokens.Identify(t.Context(), &Credential{Scheme: "bearer", Secret: secret})
		if (err == nil) != (i > 0) {
			t.Errorf("token %d of a later gateway: %v", i+1, err)
		}
	}
	for _, change := range log.changes {
		for _, secret := range secrets {
			if strings.Contains(string(change), secret) {
				t.Fatal("the log has a token")
			}
		}
	}
}

// TestForgetUser checks that a forgotten user is forgotten by another gateway, too.
func TestForgetUser(t *testing.T) {
	t.Parallel()
	allowed := true
	app := newApplication(t, func(w http.ResponseWriter, q question) { fmt.Fprintf(w, `{"allow": %v}`, allowed) })
	log := &memoryLog{}
	metrics := NewMetrics(nil)
	sources := NewSources(metrics, discard)
	hook := NewHook(HookOptions{URL: app.URL, TTL: time.Hour, Size: 10, Timeout: 10 * time.Second, Metrics: metrics,
		Sources: sources, Log: discard})
	defer hook.Close()
	access := AccessInLog(log)
	a := New(Options{Hook: hook, Access: access, Metrics: metrics, Sources: sources, Log: discard})
	alice, repo := Identity{Name: "alice", By: ByHook}, repoPath(t, "team/app")
	if err := a.May(t.Context(), alice, repo, Read); err != nil {
		t.Fatal(err)
	}
	allowed = false
	if err := a.May(t.Context(), alice, repo, Read); err != nil {
		t.Fatal("the answer is not cached: ", err)
	}
	one := &Service{Access: AccessInLog(log)}
	if _, err := one.Forget(t.Context(), connect.NewRequest(&packhorsev1.ForgetRequest{User: "alice"})); err != nil {
		t.Fatal(err)
	}
	if _, err := access.content.table(t.Context(), true); err != nil { // as after a second
		t.Fatal(err)
	}
	if err := a.May(t.Context(), alice, repo, Read); err == nil {
		t.Error("a forgotten user still has the cached permission")
	}
	_, err := one.Forget(t.Context(), connect.NewRequest(&packhorsev1.ForgetRequest{User: "a/b"}))
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("a hostile name: %v", err)
	}
}

// TestRuleSet checks versions, limits and who may manage rules.
func TestRuleSet(t *testing.T) {
	t.Parallel()
	log := &memoryLog{}
	access, _, a := sharedWorld(log)
	s := &Service{Access: access, Auth: a}
	admin := Identity{Name: "root", By: ByToken, Grant: &Grant{Operation: Admin}}
	for want, id := range map[string]Identity{
		"":                  admin,
		"may not manage":    {Name: "alice", By: ByToken, Grant: &Grant{Operation: Write}},
		"bob may not":       {Name: "bob", By: ByHook, Grant: &Grant{Operation: Admin}}, // a hook without rules
		"carol may not":     {Name: "carol", By: ByToken, Grant: &Grant{Operation: Admin, Repositories: []Pattern{{}}}},
		"dave may not":      {Name: "dave", By: ByOIDC, Grant: &Grant{Operation: Write}},
		" may not manage":   {},
		"origin-1 may not ": {Name: "origin-1", By: ByOrigin},
	} {
		_, err := s.For(t.Context(), id)
		isDenied := fault.Is(err, fault.Denied) && strings.Contains(err.Error(), want)
		if (err == nil) != (want == "") || err != nil && !isDenied {
			t.Errorf("%+v: %v, want %q", id, err, want)
		}
	}
	mine, err := s.For(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	everything := &packhorsev1.Rule{Who: []string{"root"}, Repositories: []string{"**"}, May: "admin"}
	set := func(expected uint64, force bool, rules ...*packhorsev1.Rule) error {
		_, err := mine.Set(t.Context(), connect.NewRequest(&packhorsev1.RuleServiceSetRequest{
			Set:             &packhorsev1.RuleSet{Rules: rules},
			ExpectedVersion: expected, Force: force}))
		return err
	}
	other := &packhorsev1.Rule{Who: []string{"alice"}, Repositories: []string{"**"}, May: "read"}
	if err := set(0, false, other); !fault.Is(err, fault.Precondition) {
		t.Errorf("rules that lock their author out: %v", err)
	}
	if err := set(0, false, everything, other); err != nil {
		t.Fatal(err)
	}
	if err := set(0, false, everything); !fault.Is(err, fault.Aborted) {
		t.Errorf("another version: %v", err)
	}
	long := &packhorsev1.Rule{Who: []string{"alice"}, Repositories: []string{strings.Repeat("x", 200)}, May: "read"}
	many := []*packhorsev1.Rule{everything}
	for range 1000 {
		many = append(many, long)
	}
	if err := set(1, false, many...); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "bytes as JSON") {
		t.Errorf("a huge set: %v", err)
	}
	if err := set(1, false, everything, &packhorsev1.Rule{Who: []string{"*"}, Repositories: []string{"[a-z]"},
		May: "read"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a hostile pattern: %v", err)
	}
	if err := set(1, true, other); err != nil {
		t.Fatal(err)
	}
	if _, err := s.For(t.Context(), admin); err == nil {
		t.Error("after forced rules their author administers the server")
	}
	var c accessChange
	if err := json.Unmarshal(log.changes[len(log.changes)-1], &c); err != nil || c.Rules.Version != 2 {
		t.Errorf("the last change: %+v %v", c, err)
	}
}

// TestRulesTestIsMay compares RuleService.Test with the decisions of Auth.
func TestRulesTestIsMay(t *testing.T) {
	t.Parallel()
	all := []string{"**"}
	alice := RuleSpec{Who: []string{"alice"}, Repositories: all, Refs: []string{"refs/**"}, May: "create"}
	for name, specs := range map[string][]RuleSpec{
		"no rules":  nil,
		"refs only": {alice},
		"read":      {alice, {Who: []string{"*"}, Repositories: all, May: "read"}},
		"anonymous": {alice, {Who: []string{"anonymous"}, Repositories: all, May: "read"}},
		"none":      {alice, {Who: []string{"*"}, Repositories: all, May: "none"}},
		"write":     {{Who: []string{"alice"}, Repositories: all, May: "write"}},
	} {
		for _, isOpen := range []bool{false, true} {
			rules, err := ParseRules(nil, specs, ConfiguredRule)
			if err != nil {
				t.Fatal(err)
			}
			metrics := NewMetrics(nil)
			a := New(Options{Rules: rules, OpenRead: isOpen, Metrics: metrics, Sources: NewSources(metrics, discard),
				Log: discard})
			got, err := (&Service{Auth: a}).Test(t.Context(), connect.NewRequest(&packhorsev1.RuleServiceTestRequest{
				Who: "alice", Path: "team/app", Ref: "refs/heads/x"}))
			if err != nil {
				t.Fatal(err)
			}
			for i, op := range map[int]Operation{0: Read, 1: Write, 5: Admin} {
				d := got.Msg.Decisions[i]
				err := a.May(t.Context(), Identity{Name: "alice", By: ByToken}, repoPath(t, "team/app"), op)
				if d.Permitted != (err == nil) {
					t.Errorf("%s, public read %v: %s is %v by %s, but the decision is %v", name, isOpen, d.Operation,
						d.Permitted, d.By, err)
				}
			}
		}
	}
}

// TestOldTokensGo checks that tokens that expired long ago make room.
func TestOldTokensGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		access, _, _ := sharedWorld(&memoryLog{})
		for range 5 {
			r := TokenRequest{Name: "job", Expires: time.Now().Add(time.Minute)}
			if _, _, err := access.Mint(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * time.Hour)
		}
		list, err := access.List(t.Context())
		if err != nil || len(list) != 1 || list[0].ID != "job/5" {
			t.Errorf("tokens: %+v %v", list, err)
		}
	})
}

// TestOlderRules replaces the file by an older one, as a restore of a backup does.
func TestOlderRules(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	access := AccessInFile(NewTokenFile(path))
	metrics := NewMetrics(nil)
	a := New(Options{Access: access, Metrics: metrics, Sources: NewSources(metrics, discard), Log: discard})
	read := func() error { return a.May(t.Context(), Identity{}, repoPath(t, "app"), Read) }
	var files [][]byte
	for i, may := range []string{"read", "none"} {
		set := RuleSet{Rules: []RuleSpec{{Who: []string{"anonymous"}, Repositories: []string{"**"}, May: may}}}
		if _, err := access.SetRules(t.Context(), set, uint64(i)); err != nil {
			t.Fatal(err)
		}
		if err := read(); (err == nil) != (may == "read") {
			t.Errorf("rules with %q: %v", may, err)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, text)
	}
	replace := func(text string) {
		if err := (TokenFile{path}).write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{string(files[0]), strings.Replace(string(files[1]), "none", "read", 1)} {
		replace(text)
		for range 2 {
			err := read()
			if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "restore the newer file, or restart") {
				t.Errorf("with older rules: %v", err)
			}
		}
	}
	replace(string(files[1]))
	if err := read(); err == nil || fault.Is(err, fault.Unavailable) {
		t.Errorf("with the newer rules again: %v, want a refusal", err)
	}
	replace(strings.Replace(string(files[0]), `"version": 1`, `"version": 3`, 1))
	if !gittest.Eventually(func() bool { return read() == nil }) { // after a failure a change is noticed within a second
		t.Errorf("after a change: %v", read())
	}
}

// TestLargeTokens checks that neither one token nor all of them make tokens and rules too large to be read.
func TestLargeTokens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	log := &memoryLog{}
	shared, tokens, _ := sharedWorld(log)
	for name, access := range map[string]*Access{"file": AccessInFile(NewTokenFile(file)), "shared": shared} {
		if name == "file" && testing.Short() { // 32 MiB of JSON take a minute with the race detector
			continue
		}
		part := strings.Repeat("r", 60)
		var refs []string
		for i := range 800 {
			refs = append(refs, fmt.Sprintf("refs/heads/%s%d", part, i))
		}
		long := []string{"refs/heads/" + strings.Repeat("r/", 2000) + "r"}
		for len(long) < 20 {
			long = append(long, long[0])
		}
		_, _, err := access.Mint(t.Context(), TokenRequest{Name: "one", Refs: long})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "the maximum is 65536: use fewer patterns") {
			t.Errorf("%s: a token of %d KiB: %v", name, len(long)*4, err)
		}
		limit := maxTokenFile
		if name == "shared" {
			limit = maxShared
		}
		// Nearly full, since many mints of large data take long.
		old := Token{ID: "old/1000", Name: "old", Scope: "read", Refs: refs, Hash: strings.Repeat("0", 2*sha256.Size)}
		text, _ := json.MarshalIndent(old, "  ", " ")
		table := tokenTable{Version: 2, Last: (limit - 150<<10) / len(text)}
		for i := range table.Last {
			old.ID = fmt.Sprint("old/", i)
			table.Tokens = append(table.Tokens, old)
		}
		if text, err = json.Marshal(table); err != nil {
			t.Fatal(err)
		}
		if name == "shared" {
			log.changes, log.covers, log.checkpoint = make([][]byte, table.Last), uint64(table.Last), text
		} else if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		var secret string
		for n := 0; err == nil || n == 0; n++ {
			var last string
			if last, _, err = access.Mint(t.Context(), TokenRequest{Name: "many", Refs: refs}); err == nil {
				secret = last
			}
			if n > limit/len(refs)/60 {
				t.Fatalf("%s: %d large tokens", name, n)
			}
		}
		if text := fmt.Sprintf("the maximum is %d: revoke", limit); !fault.Is(err, fault.Exhausted) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%s: one token too much: %v", name, err)
		}
		if _, err := access.SetRules(t.Context(), RuleSet{Rules: []RuleSpec{{Who: []string{"a"}, Repositories: []string{"**"},
			Refs: refs, May: "write"}}}, 0); !fault.Is(err, fault.Exhausted) {
			t.Errorf("%s: rules: %v", name, err)
		}
		if name == "shared" {
			if _, err := tokens.Identify(t.Context(), &Credential{Scheme: "bearer", Secret: secret}); err != nil {
				t.Errorf("the last token: %v", err)
			}
		}
		list, err := access.List(t.Context())
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := access.Revoke(t.Context(), list[0].Name); err != nil {
			t.Errorf("%s: revoke: %v", name, err)
		}
		if _, _, err := access.Mint(t.Context(), TokenRequest{Name: "small"}); err != nil {
			t.Errorf("%s: after a revocation: %v", name, err)
		}
	}
}

// slowLog is a log whose reads end with their context only.
type slowLog struct {
	memoryLog
	begun chan struct{}
	ended atomic.Bool
}

func (l *slowLog) ReadAccess(ctx context.Context, _ uint64) (node.AccessRecords, error) {
	close(l.begun)
	<-ctx.Done()
	l.ended.Store(true)
	return node.AccessRecords{}, ctx.Err()
}

// Close waits for a read of the log, and no other one begins.
func TestCloseOfSharedTokens(t *testing.T) {
	t.Parallel()
	l := &slowLog{begun: make(chan struct{})}
	access, tokens, _ := sharedWorld(l)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = access.content.table(ctx, true)
	}()
	<-l.begun
	cancel() // the caller leaves, and the read goes on
	<-gone
	if err := tokens.Close(); err != nil || !l.ended.Load() {
		t.Errorf("Close() = %v; the read has ended: %v", err, l.ended.Load())
	}
	if _, err := access.content.table(t.Context(), true); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after Close: %v", err)
	}
}
