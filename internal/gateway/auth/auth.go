package auth

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/transport/clients"
)

// Options of an Auth.
type Options struct {
	// Authenticators identify callers. The first one that accepts a credential decides, unless it does not know it. Auth
	// closes them.
	Authenticators []Authenticator
	Rules          []Rule
	Access         *Access // has further rules; may be nil
	Hook           *Hook   // decides if no rule matches; nil means that access is denied then
	// Origins decide about the repositories that they cover. Nil means none. Auth closes them. A hook must not be asked
	// about credentials for an origin, so there is only one of both.
	Origins *Origins
	// OpenRead lets everybody read repositories that no rule matches. OpenUntilKnown is for listeners that only this
	// machine reaches: it does so while no caller can be identified, for requests whose host is this machine.
	OpenRead, OpenUntilKnown bool
	// Guesses is the number of wrong credentials without a delay. Zero turns delays off.
	Guesses int
	Metrics *Metrics
	Sources *Sources
	Log     *slog.Logger
	Now     func() time.Time // nil means time.Now
}

// Auth identifies callers and decides what they may do. Safe for concurrent use.
type Auth struct {
	o          Options
	rules      atomic.Pointer[[]Rule] // of the configuration, and after them those of Access
	parts      ruleParts
	written    atomic.Pointer[RuleSet] // see ShowRules
	ruleSource *source
	configured atomic.Bool // result of knowsCallers
	guesses    *guesses
}

// New makes an Auth. Close ends it.
func New(o Options) *Auth {
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Auth{o: o, guesses: newGuesses(o.Guesses, o.Now), ruleSource: o.Sources.add(SourceRules, nil)}
	a.parts.forgotten.Store(-1)
	a.ShowRules(RuleSet{})
	a.SetRules(o.Rules)
	a.knowsCallers()
	return a
}

// Close closes the authenticators. No request may be running.
func (a *Auth) Close() error {
	var errs []error
	for _, x := range a.o.Authenticators {
		errs = append(errs, x.Close())
	}
	if a.o.Origins != nil {
		a.o.Origins.Close()
	}
	return errors.Join(errs...)
}

// Sources returns the identity sources, for readiness checks.
func (a *Auth) Sources() *Sources { return a.o.Sources }

// CheckRules refuses to replace rules by an empty list. Without rules the credential alone limits an identified caller,
// which could give more access than before. A configuration file that lost its rules is probably damaged.
func (a *Auth) CheckRules(rules []Rule) error {
	a.parts.Lock()
	defer a.parts.Unlock()
	if len(rules) > 0 || len(a.parts.configured) == 0 {
		return nil
	}
	err := fault.New(fault.Invalid,
		"the configuration has no [[auth.rule]] tables any more: the previous rules stay in force; restart the server to "+
			"run without rules")
	a.ruleSource.report(err)
	return err
}

// SetRules replaces the rules by rules that CheckRules has accepted.
func (a *Auth) SetRules(rules []Rule) {
	a.parts.Lock()
	defer a.parts.Unlock()
	a.parts.configured = slices.Clone(rules)
	a.joinRules()
	a.ruleSource.report(nil)
}

// ShowRules sets the rules of the configuration as they are written, for RuleService.
func (a *Auth) ShowRules(set RuleSet) { a.written.Store(&set) }

// ruleParts are the rules by their origin.
type ruleParts struct {
	sync.Mutex
	configured, stored []Rule
	version            atomic.Uint64 // of stored
	forgotten          atomic.Int64  // the number of users that were forgotten; negative: not known yet
}

func (a *Auth) joinRules() {
	all := slices.Concat(a.parts.configured, a.parts.stored)
	a.rules.Store(&all)
}

// refresh applies the present rules of Access. The error is Unavailable if they are not known.
func (a *Auth) refresh(ctx context.Context) error {
	if a.o.Access == nil {
		return nil
	}
	t, err := a.o.Access.content.table(ctx, false)
	if err != nil {
		return unavailable("the server cannot read its rules at present; try again later", err)
	}
	if forgotten := a.parts.forgotten.Swap(int64(t.Forgotten)); forgotten >= 0 && forgotten < int64(t.Forgotten) {
		a.forget()
	}
	if t.Rules.Version == a.parts.version.Load() {
		return nil
	}
	a.parts.Lock()
	defer a.parts.Unlock()
	rules, err := t.Rules.Parse()
	if err != nil {
		return unavailable("the server cannot read its rules at present; try again later", err)
	}
	if t.Rules.Version > a.parts.version.Load() {
		a.parts.stored = rules
		a.parts.version.Store(t.Rules.Version)
		a.joinRules()
	}
	return nil
}

// forget drops all cached answers of the hook and of origins. Those that are on their way are not cached.
func (a *Auth) forget() {
	if a.o.Hook != nil {
		a.o.Hook.epoch.Add(1)
	}
	if a.o.Origins != nil {
		a.o.Origins.forget()
	}
}

// Configured reports whether callers can be identified, because there are or were rules, a hook, SSH keys, tokens or
// origins. Once true it stays true for the life of the process, so that a lost file does not give access.
func (a *Auth) Configured() bool { return a.o.Origins != nil || a.knowsCallers() }

// knowsCallers is Configured without origins. They do not close repositories that they do not cover.
func (a *Auth) knowsCallers() bool {
	if !a.configured.Load() && (len(*a.rules.Load()) > 0 ||
		slices.ContainsFunc(a.o.Authenticators, Authenticator.Configured)) {
		a.configured.Store(true)
	}
	return a.configured.Load()
}

// HTTP identifies the sender of a request by its Authorization header. Without one, or with an empty password, the
// caller is anonymous. The user name of Basic does not matter if the password is a token. A token may also be the user
// name. If there are origins, a credential of an unknown kind may be for one of them, and May decides about it.
// Errors: Unauthenticated, Exhausted after too many wrong credentials, Unavailable, Invalid for several headers, Denied
// for a host that OpenUntilKnown excludes.
func (a *Auth) HTTP(r *http.Request) (Identity, error) {
	c, ok, err := fromHeader(r.Header)
	c.Address = addressOf(r.RemoteAddr)
	stranger := Identity{Address: c.Address}
	if r.Host != "" && !clients.IsLoopback(r.Host) { // a browser always sends it
		stranger.host = r.Host
		if a.o.Origins == nil && a.openHere() {
			return stranger, wrongHost(r.Host)
		}
	}
	if err == nil && (!ok || c.Secret == "") { // curl first sends the user name of a URL with an empty password
		if a.o.Origins != nil && c.User != "" { // or GitHub's token
			return a.o.Origins.caller(stranger, &c, r.Header.Get("Authorization")), nil
		}
		return stranger, nil
	}
	var id Identity
	if err == nil {
		c.checkGuesses = func() error { return a.guesses.check(&c) }
		if id, err = a.identify(r.Context(), &c); err == nil {
			a.guesses.right(&c, id.Name)
		} else if isNotKnown(err) && a.o.Origins != nil {
			return a.o.Origins.caller(stranger, &c, r.Header.Get("Authorization")), nil
		}
	}
	if fault.Is(err, fault.Unauthenticated) && !isGenuine(err) {
		err = a.guesses.wrong(&c, err)
	}
	a.o.Metrics.credential(c.Scheme, err)
	if err != nil {
		return stranger, err
	}
	return id, nil
}

// Key identifies the owner of an SSH key or certificate. login is the login name, which selects one of several owners.
// The caller has verified the signature. Clients present several keys in turn, so wrong ones do not count as guesses.
// noTouch reports that a security key need not be touched. Errors: Unauthenticated, Exhausted, Unavailable.
func (a *Auth) Key(ctx context.Context, login string, key ssh.PublicKey,
	from netip.Addr) (id Identity, noTouch bool, err error) {
	id, err = a.identify(ctx, &Credential{Scheme: ByKey, User: login, Key: key, Address: from.String()})
	return id, id.noTouch, err
}

var errNotAccepted = fault.New(fault.Unauthenticated, "this credential is not accepted here")

// identify asks the authenticators that accept a credential, in their order, until one knows it.
func (a *Auth) identify(ctx context.Context, c *Credential) (Identity, error) {
	err := notKnown(errNotAccepted)
	for _, x := range a.o.Authenticators {
		if !x.Accepts(c) {
			continue
		}
		var id Identity
		if id, err = x.Identify(ctx, c); err == nil {
			id.Address = c.Address
			return id, nil
		}
		if !isNotKnown(err) {
			break
		}
	}
	return Identity{}, err
}

// addressOf returns the address of the other end of a connection, without its port.
func addressOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}
