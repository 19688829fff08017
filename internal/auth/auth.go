package auth

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// Options says how callers are known and what they may do.
type Options struct {
	Tokens TokenFile
	Rules  []Rule
	Hook   *Hook // nil: none
	// OpenRead lets everybody read what no rule is about; OpenUntilKnown does so as long as no caller can be known: without tokens, rules, SSH keys and hook.
	OpenRead, OpenUntilKnown bool
	Keys                     bool // callers are known by SSH keys, too
	Guesses                  int  // wrong credentials before answers come later and later; 0: no end of them
	Metrics                  *Metrics
	Sources                  *Sources // what this Auth uses is added; nil: a list of its own
	Log                      *slog.Logger
	Now                      func() time.Time // nil: time.Now
}

// Auth knows callers and what they may do. Safe for concurrent use.
type Auth struct {
	o          Options
	tokens     *tokens
	rules      atomic.Pointer[[]Rule]
	ruled      *source
	configured atomic.Bool // see Configured
	lockout    *lockout

	stop    context.CancelFunc
	running sync.WaitGroup
}

// New makes an Auth. Close ends it.
func New(o Options) *Auth {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sources == nil {
		o.Sources = NewSources(o.Metrics, o.Log)
	}
	ctx, stop := context.WithCancel(context.Background())
	a := &Auth{o: o, tokens: newTokens(o.Tokens, o.Sources, o.Now), lockout: newLockout(o.Guesses, o.Now), stop: stop}
	a.ruled = o.Sources.add(SourceRules, nil)
	if o.Hook != nil {
		o.Hook.source = o.Sources.add(SourceHook, o.Hook.look)
		o.Hook.source.soft = o.Hook.o.Stale
	}
	a.SetRules(o.Rules)
	a.tokens.some() // what is there now is missed when it is gone
	a.Configured()
	a.running.Go(func() { a.writeUsed(ctx) })
	return a
}

// Close writes down what is still to be written. No request may be running.
func (a *Auth) Close() error {
	a.stop()
	a.running.Wait()
	if a.o.Hook != nil {
		a.o.Hook.close()
	}
	return nil
}

// Sources returns the list of what this Auth uses, to which Keys add their files.
func (a *Auth) Sources() *Sources { return a.o.Sources }

// usedEvery is how often it is written down when tokens were last used.
const usedEvery = time.Minute

func (a *Auth) writeUsed(ctx context.Context) {
	tick := time.NewTicker(usedEvery)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-ctx.Done():
			ended = true
		case <-tick.C:
		}
		if err := a.tokens.writeUsed(); err != nil {
			a.o.Log.Warn("cannot write down when tokens were last used", "error", err)
		}
	}
}

// CheckRules refuses rules that must not take the place of those in force: none, where there were some. Without rules
// every known caller may do what its credential is for, which may be more than before, and a configuration file that
// lost its rules is damaged more often than it is meant.
func (a *Auth) CheckRules(rules []Rule) error {
	if len(rules) > 0 || len(*a.rules.Load()) == 0 {
		return nil
	}
	err := fault.New(fault.Invalid, "the configuration has no [[auth.rule]] tables any more: the rules that were read before stay in force; restart the "+
		"server if it is to run without rules")
	a.ruled.report(err)
	return err
}

// SetRules puts rules that CheckRules accepts in the place of those in force.
func (a *Auth) SetRules(rules []Rule) {
	rules = slices.Clone(rules)
	a.rules.Store(&rules)
	a.ruled.report(nil)
}

// Configured reports whether callers can be told from one another: there are or were rules, a hook, SSH keys, or
// tokens. Where it is false, and nowhere else, everybody may read everything. Once true it stays true as long as the
// process lives: that something is lost opens nothing.
func (a *Auth) Configured() bool {
	if !a.configured.Load() && (len(*a.rules.Load()) > 0 || a.o.Hook != nil || a.o.Keys || a.tokens.some()) {
		a.configured.Store(true)
	}
	return a.configured.Load()
}

// HTTP tells who sends a request, from its Authorization header; without one, or with an empty password, the caller is
// anonymous. The user name of Basic does not count where the password is a token; a token may also be the user name,
// whatever the password is. Errors: Unauthenticated, Exhausted for too many guesses, Unavailable, Invalid for several
// headers.
func (a *Auth) HTTP(r *http.Request) (Identity, error) {
	address := addressOf(r.RemoteAddr)
	c, given, err := fromHeader(r.Header)
	if err == nil && (!given || c.secret == "") { // curl sends a user name of the URL with an empty password first
		return Identity{Address: address}, nil
	}
	id := Identity{}
	if err == nil {
		id, err = a.check(r.Context(), c, address)
	} else if fault.Is(err, fault.Unauthenticated) {
		err = a.lockout.wrong(address, "", "", err)
	}
	a.o.Metrics.credential(c.scheme, err)
	if err != nil {
		return Identity{Address: address}, err
	}
	id.Address = address
	return id, nil
}

// check tells whom a credential proves.
func (a *Auth) check(ctx context.Context, c credential, address string) (Identity, error) {
	if strings.HasPrefix(c.secret, tokenPrefix) || a.o.Hook == nil {
		// A right token is never locked out: nobody finds one by guessing, and others behind the same address may have a wrong one.
		id, err := a.tokens.find(c.secret)
		switch {
		case err == nil:
			a.lockout.right(address, "", "", id.Name)
		case err == errExpired: // it was right once, and no guess
		case fault.Is(err, fault.Unauthenticated):
			err = a.lockout.wrong(address, "", a.lockout.proof("", c.secret), err)
		}
		return id, err
	}
	return a.askWho(ctx, question{Credential: &offered{Type: c.scheme, User: c.user, Secret: c.secret}}, c, address)
}

// askWho asks the hook whom a credential proves.
func (a *Auth) askWho(ctx context.Context, q question, c credential, address string) (Identity, error) {
	q.Question, q.Client = identify, address
	proof := a.lockout.proof(c.user, c.secret)
	locked := func() error { return a.lockout.locked(address, c.user, proof) }
	if err := locked(); err != nil { // also where the answer is remembered: that would be a way to guess as well
		return Identity{}, err
	}
	id, err := a.o.Hook.askWho(ctx, q, locked) // and again when its turn comes: many guesses at the same time are no way either
	switch {
	case err == nil:
		own := c.user
		if own != id.Name { // applications take their own tokens with any user name: that says nothing of who has the name
			own = ""
		}
		a.lockout.right(address, own, proof, id.Name)
	case fault.Is(err, fault.Unauthenticated):
		err = a.lockout.wrong(address, c.user, proof, err)
	}
	return id, err
}

// May tells whether an identity may do this: nil if so. Errors: Unauthenticated if somebody who is known might, for repositories that exist
// and others alike; NotFound with what NoRepository says if the caller may not know of the repository; Denied if it may read it; Unavailable.
func (a *Auth) May(ctx context.Context, id Identity, repo git.RepoPath, op Operation) error {
	err := a.may(ctx, id, repo, op)
	a.o.Metrics.decision(op, id, err)
	return err
}

func (a *Auth) may(ctx context.Context, id Identity, repo git.RepoPath, op Operation) error {
	path := pathOf(repo)
	allowed, err := a.allowed(ctx, id, repo, path, op)
	if allowed || err != nil {
		return err
	}
	if id.Anonymous() {
		if op != Read && !a.Configured() {
			return fault.New(fault.Denied, "nobody can push here yet: whoever runs this server makes a token with \"packhorse token create\"")
		}
		return fault.New(fault.Unauthenticated, "say who you are: give a token as the password, with any user name")
	}
	if op != Read {
		if allowed, err = a.allowed(ctx, id, repo, path, Read); err != nil {
			return err
		}
	}
	if !allowed {
		return NoRepository(repo)
	}
	if id.Grant != nil && !id.Grant.allows(path, op) {
		return fault.New(fault.Denied, "%s may read this repository, but this credential is not for more", id.Name)
	}
	return fault.New(fault.Denied, "%s may read this repository, but not %s it", id.Name, [...]string{Write: "push to", Admin: "administer"}[op])
}

// NoRepository is the error for a repository that does not exist, or must not be known to.
func NoRepository(repo git.RepoPath) error {
	return fault.New(fault.NotFound, "no repository %s here", repo)
}

// verdict is what is decided without asking anybody.
type verdict int

const (
	no verdict = iota
	yes
	asks // the hook decides
)

func verdictOf(allowed bool) verdict {
	if allowed {
		return yes
	}
	return no
}

// known decides for somebody who is known, without what anonymous callers may.
func (a *Auth) known(id Identity, path []string, op Operation) verdict {
	if !id.Grant.allows(path, op) {
		return no
	}
	rules := *a.rules.Load()
	switch allows := decide(rules, id, path); {
	case allows >= 0:
		return verdictOf(int(op) < allows)
	case a.o.Hook != nil:
		return asks
	}
	return verdictOf(len(rules) == 0) // then a credential says itself what it is for
}

// anonymous decides whether anonymous callers may read.
func (a *Auth) anonymous(id Identity, path []string) verdict {
	switch allows := decide(*a.rules.Load(), id, path); {
	case allows >= 0:
		return verdictOf(int(Read) < allows)
	case a.o.OpenRead || a.o.OpenUntilKnown && !a.Configured():
		return yes
	case a.o.Hook != nil:
		return asks
	}
	return no
}

// allowed decides. What anonymous callers may, everybody may: they need only leave their credential at home.
func (a *Auth) allowed(ctx context.Context, id Identity, repo git.RepoPath, path []string, op Operation) (bool, error) {
	if !id.Anonymous() {
		switch a.known(id, path, op) {
		case yes:
			return true, nil
		case asks:
			if allowed, err := a.o.Hook.may(ctx, id, repo, op); allowed || err != nil {
				return allowed, err
			}
		}
	}
	if op != Read {
		return false, nil
	}
	stranger := Identity{Address: id.Address}
	switch a.anonymous(stranger, path) {
	case yes:
		return true, nil
	case asks:
		return a.o.Hook.may(ctx, stranger, repo, op)
	}
	return false, nil
}

// addressOf is the address of a connection's other end without its port.
func addressOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}
