package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// guesses limits wrong credentials for each network of callers. The first ones are free, later ones wait. User names do
// not count: many callers share one, such as all jobs of a forge, and guesses at it must not lock them out.
//
// A credential counts once for each network, so that a machine with an old password does not lock out others. A
// credential that was right from a network is never delayed there. A right credential forgives earlier wrong ones of
// its network, so that programs may try several. Each name forgives a limited number.
//
// All tables are bounded. The least recently used entry is dropped first. Safe for concurrent use.
type guesses struct {
	free   int // wrong credentials without a delay; zero turns delays off
	now    func() time.Time
	secret [32]byte // key of the hashes of credentials, random for each process

	mu       sync.Mutex
	attempts *simplelru.LRU[attempt, outcome]
	limiters *simplelru.LRU[limited, *rate.Limiter]
}

// attempt is a credential from a network.
type attempt struct{ network, credential string }

// outcome is the result of the latest use of an attempt.
type outcome struct {
	right bool
	last  time.Time
}

// limited is the subject of a limiter: a network. With forgives it is the forgiveness for the network, by one name or
// by all.
type limited struct {
	network, name string
	forgives      bool
}

const (
	maxGuessers      = 1 << 16 // entries of each table
	guessInterval    = time.Minute
	forgiveInterval  = 10 * time.Minute
	forgiveAll       = 10 // times free: the limit for all names of a network together
	rememberWrong    = 10 * time.Minute
	rememberRight    = 24 * time.Hour
	networkPrefixLen = 64 // of IPv6
)

func newGuesses(free int, now func() time.Time) *guesses {
	g := &guesses{free: free, now: now}
	g.attempts, _ = simplelru.NewLRU[attempt, outcome](maxGuessers, nil) // fails only for a size below 1
	g.limiters, _ = simplelru.NewLRU[limited, *rate.Limiter](maxGuessers, nil)
	rand.Read(g.secret[:]) // never fails
	return g
}

// network returns the network that an address counts for: itself, or its /64 in IPv6.
func network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	if ip = ip.Unmap(); ip.Is6() {
		if p, err := ip.WithZone("").Prefix(networkPrefixLen); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

// attempt returns the key of a credential in the table of attempts.
func (g *guesses) attempt(c *Credential) attempt {
	m := hmac.New(sha256.New, g.secret[:])
	m.Write([]byte(c.User + "\x00" + c.Secret)) // neither has control characters
	return attempt{network: network(c.Address), credential: string(m.Sum(nil))}
}

// outcome returns the result of an earlier attempt that is not too old. g.mu is held.
func (g *guesses) outcome(a attempt) (o outcome, ok bool) {
	o, ok = g.attempts.Get(a)
	limit := rememberWrong
	if o.right {
		limit = rememberRight
	}
	return o, ok && g.now().Sub(o.last) < limit
}

// limiter returns the limiter of a subject, which starts with burst events. g.mu is held.
func (g *guesses) limiter(of limited, interval time.Duration, burst int) *rate.Limiter {
	l, ok := g.limiters.Get(of)
	if !ok {
		l = rate.NewLimiter(rate.Every(interval), burst)
		g.limiters.Add(of, l)
	}
	return l
}

func (g *guesses) guessLimiter(network string) *rate.Limiter {
	return g.limiter(limited{network: network}, guessInterval, g.free)
}

// check fails with Exhausted while the caller has to wait. A credential that was used before is not a guess.
func (g *guesses) check(c *Credential) error {
	if g.free == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.outcome(g.attempt(c)); known {
		return nil
	}
	return g.delay(c)
}

// delay fails with Exhausted while the network of a credential has no free guess. g.mu is held.
func (g *guesses) delay(c *Credential) error {
	left := g.guessLimiter(network(c.Address)).TokensAt(g.now())
	if left >= 1 {
		return nil
	}
	wait := time.Duration((1 - left) * float64(guessInterval))
	return fault.Retry(fault.Exhausted, max(wait, time.Second), "too many wrong credentials: wait, and check yours")
}

// wrong counts a wrong credential. It returns err, or Exhausted if the caller has to wait: then the credential does not
// count.
func (g *guesses) wrong(c *Credential, err error) error {
	if g.free == 0 {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	a, now := g.attempt(c), g.now()
	if _, known := g.outcome(a); known {
		g.attempts.Add(a, outcome{last: now})
		return err
	}
	if wait := g.delay(c); wait != nil {
		return wait
	}
	if c.Secret != "" { // otherwise the header was invalid
		g.attempts.Add(a, outcome{last: now})
	}
	g.guessLimiter(a.network).AllowN(now, 1)
	return err
}

// right records a right credential of name, and forgives wrong ones of its network.
func (g *guesses) right(c *Credential, name string) {
	if g.free == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.attempt(c)
	g.attempts.Add(a, outcome{right: true, last: g.now()})
	g.forgive(a.network, name)
}

// forgive refunds guesses of a network, as far as name and the network may. g.mu is held.
func (g *guesses) forgive(network, name string) {
	l, ok := g.limiters.Peek(limited{network: network})
	if !ok {
		return
	}
	now := g.now()
	byName := g.limiter(limited{network, name, true}, forgiveInterval, g.free)
	byAll := g.limiter(limited{network, "", true}, forgiveInterval, forgiveAll*g.free)
	n := min(g.free-int(l.TokensAt(now)), int(byName.TokensAt(now)), int(byAll.TokensAt(now)))
	if n > 0 {
		byName.AllowN(now, n)
		byAll.AllowN(now, n)
		left := min(g.free, int(l.TokensAt(now))+n)
		fresh := rate.NewLimiter(rate.Every(guessInterval), g.free)
		fresh.AllowN(now, g.free-left)
		g.limiters.Add(limited{network: network}, fresh)
	}
}
