package auth

import (
	"container/list"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net/netip"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// lockout makes guessing slow. Wrong credentials are counted for each address (of IPv6 for each /64), and for each user
// name once for each address: one address locks out nobody but itself, whichever names it guesses at. After the first
// few each one more locks for twice as long.
//
// What teaches a guesser nothing does not count: the same wrong credential again, as of a machine with a stale
// password, and what was right from an address before, which is not locked there. A login that succeeds forgives what
// was wrong at its address before, as of programs that try several credentials. Each name forgives as many as are free,
// and all names together forgivenAtOnce times as many, within forgetWrong: whoever has one right credential and guesses
// at others gets about twice as many guesses as without it.
//
// Tables are bounded; what was counted longest ago goes first. Safe for concurrent use.
type lockout struct {
	free int // wrong ones before it begins; 0: it never does
	now  func() time.Time
	key  [32]byte // of proofs; made anew by each process

	mu     sync.Mutex
	counts map[guesser]*list.Element // of *count
	oldest list.List
}

// guesser is who is counted: an address or a user name; or an address that has guessed at a user name; or an address
// and a proof, the keyed hash of a credential that was tried from there; or an address and who forgives there.
type guesser struct{ address, user, proof, forgiver string }

type count struct {
	who   guesser
	right bool // of a proof
	wrong int
	last  time.Time
	until time.Time // locked

	forgiven int // of an address, or of who forgives there, since then
	since    time.Time
}

const (
	maxGuessers  = 1 << 16
	firstLock    = time.Second
	longestLock  = time.Minute
	forgetWrong  = 10 * time.Minute // after the last
	forgetRight  = 24 * time.Hour
	maxGuessName = 256 // bytes of a user name that count

	forgivenAtOnce = 10
)

func newLockout(free int, now func() time.Time) *lockout {
	l := &lockout{free: free, now: now, counts: map[guesser]*list.Element{}}
	rand.Read(l.key[:]) // never fails
	return l
}

// proof is what a credential is remembered by.
func (l *lockout) proof(user, secret string) string {
	if l.free == 0 {
		return ""
	}
	m := hmac.New(sha256.New, l.key[:])
	m.Write([]byte(user + "\x00" + secret)) // neither has a control character in it
	return string(m.Sum(nil))
}

// network is what an address is counted by: its holder has the rest.
func network(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return address
	}
	if ip = ip.Unmap(); ip.Is6() {
		if p, err := ip.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return ip.String()
}

func guessers(address, user string) []guesser {
	each := []guesser{{address: network(address)}}
	if user != "" {
		each = append(each, guesser{user: user[:min(len(user), maxGuessName)]})
	}
	return each
}

// get finds a count that is not out of date; with add it makes one. l.mu is held.
func (l *lockout) get(who guesser, add bool) *count {
	now := l.now()
	if e := l.counts[who]; e != nil {
		c := e.Value.(*count)
		if now.Sub(c.last) < forgetWrong || c.right && now.Sub(c.last) < forgetRight {
			if now.Sub(c.last) >= forgetWrong {
				c.wrong = 0
			}
			if add {
				c.last = now
				l.oldest.MoveToBack(e)
			}
			return c
		}
		l.remove(e)
	}
	if !add {
		return nil
	}
	if len(l.counts) >= maxGuessers {
		l.remove(l.oldest.Front())
	}
	c := &count{who: who, last: now}
	l.counts[who] = l.oldest.PushBack(c)
	return c
}

func (l *lockout) remove(e *list.Element) {
	l.oldest.Remove(e)
	delete(l.counts, e.Value.(*count).who)
}

// locked fails with Exhausted while no more guesses are taken. A proof that was tried before is no guess.
func (l *lockout) locked(address, user, proof string) error {
	if l.free == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if proof != "" && l.get(guesser{address: network(address), proof: proof}, false) != nil {
		return nil
	}
	return l.wait(address, user)
}

// wait fails while an address or user name is locked. l.mu is held.
func (l *lockout) wait(address, user string) error {
	wait := time.Duration(0)
	for _, who := range guessers(address, user) {
		if c := l.get(who, false); c != nil {
			wait = max(wait, c.until.Sub(l.now()))
		}
	}
	return tooMany(wait)
}

func tooMany(wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	return fault.Retry(fault.Exhausted, wait, "too many wrong credentials; wait a while, and see that yours is right")
}

// wrong counts a wrong credential and gives the error for it: err, or, while guesses are locked, Exhausted. What comes while they are
// locked does not count.
func (l *lockout) wrong(address, user, proof string, err error) error {
	if l.free == 0 {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	tried := guesser{address: network(address), proof: proof}
	if proof != "" {
		if c := l.get(tried, false); c != nil && !c.right {
			l.get(tried, true)
			return err
		}
		if e := l.counts[tried]; e != nil {
			l.remove(e) // it is right no more
		}
	}
	if locked := l.wait(address, user); locked != nil {
		return locked
	}
	if proof != "" {
		l.get(tried, true)
	}
	for _, who := range guessers(address, user) {
		if pair := (guesser{address: network(address), user: who.user}); who.user != "" {
			known := l.get(pair, false) != nil
			if l.get(pair, true); known {
				continue
			}
		}
		c := l.get(who, true)
		c.wrong++
		if over := c.wrong - l.free; over >= 0 {
			c.until = l.now().Add(min(longestLock, firstLock<<min(over, 16)))
		}
	}
	return err
}

// right notes that a credential was right by which a caller is known by a name. User is that name if it was offered
// with the credential and had to fit, else ""; proof is "" for credentials that are never locked out.
func (l *lockout) right(address, user, proof, name string) {
	if l.free == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if proof != "" {
		l.get(guesser{address: network(address), proof: proof}, true).right = true
	}
	if len(l.counts) == 0 {
		return
	}
	l.forgive(network(address), name)
	if e := l.counts[guesser{address: network(address), user: user[:min(len(user), maxGuessName)]}]; user != "" && e != nil {
		l.remove(e) // whoever knows the password does not guess at it
		if c := l.get(guessers(address, user)[1], false); c != nil {
			l.uncount(c, 1)
		}
	}
}

// forgive takes back what an address is held to be guilty of, as far as somebody who is known may. l.mu is held.
func (l *lockout) forgive(address, name string) {
	at := l.get(guesser{address: address}, false)
	if at == nil || at.wrong == 0 {
		return
	}
	by := l.get(guesser{address: address, forgiver: name}, true)
	n := min(at.wrong, by.mayForgive(l.free, l.now()), at.mayForgive(forgivenAtOnce*l.free, l.now()))
	by.forgiven += n
	at.forgiven += n
	l.uncount(at, n)
}

// mayForgive is how many more may be forgiven now, of a number within forgetWrong.
func (c *count) mayForgive(most int, now time.Time) int {
	if now.Sub(c.since) >= forgetWrong {
		c.since, c.forgiven = now, 0
	}
	return most - c.forgiven
}

// uncount takes wrong credentials back, and with them a lock that they are needed for. l.mu is held.
func (l *lockout) uncount(c *count, n int) {
	if c.wrong = max(0, c.wrong-n); n > 0 && c.wrong < l.free {
		c.until = time.Time{}
	}
}
