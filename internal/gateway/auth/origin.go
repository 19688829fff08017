package auth

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/schedule/inflight"
)

// Prober finds origins: servers whose repositories are here as mirrors, or on a shared disk. Safe for concurrent use.
type Prober interface {
	// Find returns the origin that decides about a repository, whether that exists or not; nil if there is none.
	Find(repo git.RepoPath) *node.Origin
	// FoldsCase reports whether all spellings of a path, in upper or lower case, lead to the same repository. It may not
	// be covered.
	FoldsCase(repo git.RepoPath) bool
	// Hosts returns the hosts of all origins. A host may occur more than once.
	Hosts() []string
}

// OriginOptions of Origins.
type OriginOptions struct {
	Probers []Prober // the first one that covers a repository decides
	TTL     time.Duration
	// File keeps permissions for the time after a restart, when they count as long as before it. It has no credentials,
	// see originFile. "" means that a restart forgets them.
	File    string
	Metrics *Metrics
	Log     *slog.Logger     // nil means none
	Now     func() time.Time // nil means time.Now
}

// Origins identifies callers by asking the origin of a repository whether it accepts their credential for it. So this
// server permits what the origin permits, and a credential counts for one repository at a time.
//
// Answers are cached under a keyed hash of credential, repository and service: permissions for the TTL, and refusals
// for at most 10 seconds, 30 if the repository does not exist. Equal concurrent questions become one request. While the
// origin gives no answer, or none within 10 seconds, an earlier permission holds for its StaleFor. Everything else is
// refused. Safe for concurrent use.
type Origins struct {
	o      OriginOptions
	key    [32]byte // of the hashes, random
	epoch  atomic.Uint64
	flight singleflight.Group
	slots  *slots

	saving sync.Mutex    // held to write the file; locked before mu
	saved  chan struct{} // closed when the file was written for the last time

	mu      sync.Mutex
	changed bool // allowed is not as in the file
	allowed *simplelru.LRU[originKey, originPermission]
	refused *simplelru.LRU[originKey, originRefusal] // separate, so that guesses do not displace permissions
	known   *simplelru.LRU[originKey, struct{}]      // hashes of credentials with the host that has accepted them

	life context.Context
	stop context.CancelFunc // ends life
}

// originKey is the hash of a question.
type originKey [sha256.Size]byte

// originPermission is a permission of the origin.
type originPermission struct {
	at    time.Time // of the answer
	until time.Time // the origin is not asked again before
}

type originRefusal struct {
	until time.Time
	err   error
}

const (
	maxOriginAnswers  = 1 << 16 // of each kind
	maxOriginRequests = 64      // at the same time
	originTimeout     = 30 * time.Second
	// originPatience is how long a request waits for all answers of the origin together. Without an answer an earlier
	// permission is used, for as long as originTimeout. It is longer than the client of an origin waits for its own
	// budget: a used budget is not an outage.
	originPatience = 10 * time.Second
	// absentTTL is the maximum TTL of the answer that a repository does not exist.
	absentTTL = 30 * time.Second
	// silentPatience is originPatience while the origin is silent, if it has answered the same question before.
	silentPatience = time.Second
)

// NewOrigins makes Origins. Close ends it.
func NewOrigins(o OriginOptions) *Origins {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Origins{o: o, slots: newSlots(maxOriginRequests, originTimeout), saved: make(chan struct{})}
	s.allowed, _ = simplelru.NewLRU[originKey, originPermission](maxOriginAnswers, nil) // fails only for a size below 1
	s.refused, _ = simplelru.NewLRU[originKey, originRefusal](maxOriginAnswers, nil)
	s.known, _ = simplelru.NewLRU[originKey, struct{}](maxOriginAnswers, nil)
	rand.Read(s.key[:]) // never fails
	s.life, s.stop = context.WithCancel(context.Background())
	if o.File == "" {
		close(s.saved)
		return s
	}
	s.load()
	go s.keepSaving()
	return s
}

// Close cancels running requests, and writes the file. It does not close the probers.
func (s *Origins) Close() {
	s.stop()
	<-s.saved
}

// originCaller is a caller whose credential is for an origin. Whether it is right depends on the repository.
type originCaller struct {
	Credential
	authorization node.Secret // as sent
}

// caller returns the identity of a caller whose credential only an origin may know.
func (s *Origins) caller(stranger Identity, c *Credential, authorization string) Identity {
	sum := s.hash(authorization)
	return Identity{
		Name: "origin-" + hex.EncodeToString(sum[:6]), By: ByOrigin, Address: c.Address, host: stranger.host,
		origin: &originCaller{*c, node.NewSecret(authorization)},
	}
}

// OfSession returns the identity for the session of a browser. With a credential that only an origin can check, it is
// an anonymous caller of other repositories. The credential is not a guess: the origin accepted it when the session
// began.
func (id Identity) OfSession() Identity {
	if id.origin != nil {
		caller := *id.origin
		caller.Secret = ""
		id.origin = &caller
	}
	return id
}

// Authorization returns the caller's credential for the origin, as the value of an Authorization header. If May permits
// the identity an operation on a repository, the origin has accepted the credential for that. It is zero for identities
// of other kinds.
func (id Identity) Authorization() node.Secret {
	if id.origin == nil {
		return node.Secret{}
	}
	return id.origin.authorization
}

// find returns the origin of a repository, or nil. Nil Origins have none.
func (s *Origins) find(repo git.RepoPath) *node.Origin {
	if s == nil {
		return nil
	}
	for _, p := range s.o.Probers {
		if o := p.Find(repo); o != nil {
			return o
		}
	}
	return nil
}

// foldsCase reports whether rules ignore the case of a repository's path. Nil Origins do so for none.
func (s *Origins) foldsCase(repo git.RepoPath) bool {
	return s != nil && slices.ContainsFunc(s.o.Probers, func(p Prober) bool { return p.FoldsCase(repo) })
}

// forget forgets all answers. The hashes of later ones differ, also from those of answers that are on their way.
func (s *Origins) forget() {
	s.epoch.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allowed.Purge()
	s.refused.Purge()
	s.changed = true
}

func (s *Origins) hash(parts ...string) (sum originKey) {
	m := hmac.New(sha256.New, s.key[:])
	if epoch := s.epoch.Load(); epoch > 0 {
		parts = append(parts, strconv.FormatUint(epoch, 10))
	}
	for _, part := range parts { // headers, paths and services have no control characters
		m.Write([]byte(part))
		m.Write([]byte{0})
	}
	m.Sum(sum[:0])
	return sum
}

// serviceOf returns the service of an operation. ok is false if an origin cannot permit it.
func serviceOf(op Operation) (service protocol.Service, ok bool) {
	switch op {
	case Read:
		return protocol.UploadPack, true
	case Write:
		return protocol.ReceivePack, true
	}
	return "", false
}

// originQuestion is a question about one caller, repository and service.
type originQuestion struct {
	origin        *node.Origin
	key           originKey
	repo          git.RepoPath
	service       protocol.Service
	authorization node.Secret // zero for an anonymous caller
	client        string      // IP address
}

func (s *Origins) question(o *node.Origin, id Identity, repo git.RepoPath, service protocol.Service) originQuestion {
	q := originQuestion{origin: o, repo: repo, service: service, client: id.Address}
	if id.origin != nil {
		q.authorization = id.origin.authorization
	}
	// not the path of rules: an origin may have different repositories "app" and "app.git"
	q.key = s.hash(q.authorization.Reveal(), repo.String(), string(service), o.URL)
	return q
}

func (s *Origins) hostKey(q originQuestion) originKey {
	return s.hash(q.authorization.Reveal(), q.origin.Host)
}

// withhold makes those of a caller's questions anonymous whose origin must not get the credential: if there are several
// hosts, and this one has not accepted the credential before. The caller has not named a host.
func (s *Origins) withhold(questions []originQuestion) {
	hosts := map[string]bool{}
	for _, p := range s.o.Probers {
		for _, host := range p.Hosts() {
			hosts[host] = true
		}
	}
	if len(hosts) < 2 {
		return
	}
	for i, q := range questions {
		s.mu.Lock()
		_, isKnown := s.known.Get(s.hostKey(q))
		s.mu.Unlock()
		if !isKnown {
			questions[i] = s.question(q.origin, Identity{Address: q.client}, q.repo, q.service)
		}
	}
}

// ask returns nil if the origin permits what the question is about, and its refusal otherwise: Unauthenticated, Denied
// or NotFound. Further errors: Unavailable, Exhausted.
func (s *Origins) ask(ctx context.Context, q originQuestion) error {
	if answer, ok := s.cached(q.key); ok {
		s.o.Metrics.question("origin", "cached")
		return answer
	}
	ctx, span := inflight.Trace(ctx, "auth origin")
	defer span.End("")
	defer inflight.From(ctx).WaitForOrigin()()
	done := s.flight.DoChan(string(q.key[:]), func() (any, error) { return nil, s.request(q) })
	patience := s.patience(ctx, q)
	late := time.NewTimer(patience)
	defer late.Stop()
	var err error
	select {
	case r := <-done:
		err = r.Err
	case <-late.C:
		s.hold(q)
		err = fault.New(fault.Unavailable, "no answer within %v", patience)
	case <-ctx.Done():
		return ctx.Err()
	}
	if err == nil || isRefusal(err) || fault.Is(err, fault.Exhausted) {
		return err
	}
	if s.isStale(q) {
		s.o.Metrics.question("origin", "stale")
		return nil
	}
	failure := &fault.Error{
		Kind: fault.Unavailable, Msg: "the server that this repository comes from cannot check permissions at present; " +
			"try again",
		RetryAfter: max(fault.RetryLater, fault.RetryAfter(err)), Err: err,
	}
	if cause := errors.Unwrap(err); fault.Is(cause, fault.Exhausted) { // the origin's limit, and not one of Origins
		failure.Kind, failure.CallerLimit, failure.Msg = fault.Exhausted, true, fault.Message(cause)
	}
	return failure
}

// patience returns how long a caller waits for an answer.
func (s *Origins) patience(ctx context.Context, q originQuestion) time.Duration {
	s.mu.Lock()
	wasRefused := s.refused.Contains(q.key)
	s.mu.Unlock()
	if q.origin.IsSilent && (wasRefused || s.isStale(q)) {
		return silentPatience
	}
	return max(originPatience-inflight.From(ctx).OriginWait(), silentPatience)
}

// isRefusal reports whether an error of Probe is an answer of the origin. An address that may not be used is a failure.
func isRefusal(err error) bool {
	if _, failed := errors.AsType[*net.OpError](err); failed {
		return false
	}
	return fault.Is(err, fault.Unauthenticated) || fault.Is(err, fault.Denied) || fault.Is(err, fault.NotFound)
}

// cached returns an answer that still holds.
func (s *Origins) cached(key originKey) (answer error, ok bool) {
	now := s.o.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, found := s.allowed.Get(key); found && now.Before(p.until) {
		return nil, true
	}
	if r, found := s.refused.Get(key); found && now.Before(r.until) {
		return r.err, true
	}
	return nil, false
}

// denial returns the origin's own words about an operation that it has just denied, or "".
func (s *Origins) denial(o *node.Origin, id Identity, repo git.RepoPath, op Operation) string {
	service, _ := serviceOf(op)
	answer, _ := s.cached(s.question(o, id, repo, service).key)
	if !fault.Is(answer, fault.Denied) {
		return ""
	}
	return fault.Message(answer)
}

// wasPublic reports whether the origin has permitted what a question of an anonymous caller is about before.
func (s *Origins) wasPublic(q originQuestion) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.allowed.Contains(q.key)
}

// isStale reports whether an earlier permission holds while the origin gives no answer.
func (s *Origins) isStale(q originQuestion) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.allowed.Peek(q.key)
	return ok && s.o.Now().Before(p.at.Add(q.origin.StaleFor))
}

// hold makes an earlier permission count without another wait for the origin.
func (s *Origins) hold(q originQuestion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Now()
	if p, ok := s.allowed.Peek(q.key); ok && !now.Before(p.until) {
		p.until = now.Add(originTimeout)
		if end := p.at.Add(q.origin.StaleFor); end.Before(p.until) {
			p.until = end
		}
		s.allowed.Add(q.key, p)
	}
}

// request asks the origin as soon as there is a slot, and caches its answer.
func (s *Origins) request(q originQuestion) error {
	leave, err := s.slots.enter(q.client)
	if err != nil {
		s.o.Metrics.question("origin", "skipped")
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(s.life, originTimeout) // not a caller's context: several may wait for the answer
	defer cancel()
	asked := s.o.Now() // the permission may be revoked while the answer is on its way
	err = q.origin.Probe(ctx, q.service, q.authorization, s.payer(q))
	switch {
	case err == nil:
		s.o.Metrics.question("origin", "ok")
	case isRefusal(err):
		s.o.Metrics.question("origin", "refused")
	default:
		s.o.Metrics.question("origin", "failed")
		return &fault.Error{Kind: fault.Unavailable, Msg: "ask the origin", RetryAfter: fault.RetryAfter(err), Err: err}
	}
	if wasAllowed := s.keep(q, asked, err); wasAllowed && err != nil {
		s.save() // a restart must not give the permission back
	}
	return err
}

// payer returns the caller that a question counts for. Questions of anonymous callers, or with credentials that no
// origin has accepted, count for the caller's network. So a client that asks for many repositories has one share.
func (s *Origins) payer(q originQuestion) string {
	host := s.hostKey(q)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case q.authorization.IsZero():
	case s.allowed.Contains(q.key):
		return ""
	case s.known.Contains(host):
		return "origin-" + hex.EncodeToString(host[:6])
	}
	return network(q.client) + "/"
}

// keep caches an answer. It reports whether the origin has permitted the same before.
func (s *Origins) keep(q originQuestion, asked time.Time, err error) (wasAllowed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.allowed.Add(q.key, originPermission{asked, asked.Add(s.o.TTL)})
		s.refused.Remove(q.key)
		s.known.Add(s.hostKey(q), struct{}{})
		s.changed = true
		return true
	}
	wasAllowed = s.allowed.Remove(q.key)
	s.changed = s.changed || wasAllowed
	ttl := refusalTTL
	if fault.Is(err, fault.NotFound) {
		ttl = absentTTL
	}
	s.refused.Add(q.key, originRefusal{asked.Add(min(s.o.TTL, ttl)), err})
	return wasAllowed
}
