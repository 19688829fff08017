package auth

import (
	"container/list"
	"net/netip"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// lockout makes guessing slow. Wrong credentials are counted for each address (of IPv6 for each /64), and for each user name once for each address:
// one address locks out nobody but itself, whichever names it guesses at. After the first few each one more locks for twice as long. What was right from an address before is not locked there: neither others that guess at the same name
// nor those behind the same address, as one machine of a fleet that has a wrong password, lock it out. Tables are bounded; what was counted
// longest ago goes first. Safe for concurrent use.
type lockout struct {
	free int // wrong ones before it begins; 0: it never does
	now  func() time.Time

	mu     sync.Mutex
	counts map[guesser]*list.Element // of *count
	oldest list.List
}

// guesser is who is counted: an address or a user name; or an address that has guessed at a user name; or an address and a proof, the keyed hash of a credential that was right from there.
type guesser struct{ address, user, proof string }

type count struct {
	who   guesser
	right bool // of a proof
	wrong int
	last  time.Time
	until time.Time // locked
}

const (
	maxGuessers  = 1 << 16
	firstLock    = time.Second
	longestLock  = time.Minute
	forgetWrong  = 10 * time.Minute // after the last
	forgetRight  = 24 * time.Hour
	maxGuessName = 256 // bytes of a user name that count
)

func newLockout(free int, now func() time.Time) *lockout {
	return &lockout{free: free, now: now, counts: map[guesser]*list.Element{}}
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

// locked fails with Exhausted while no more guesses are taken. A proof that was right before is no guess.
func (l *lockout) locked(address, user, proof string) error {
	if l.free == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if proof != "" {
		if c := l.get(guesser{address: network(address), proof: proof}, false); c != nil && c.right {
			return nil
		}
	}
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
	if e := l.counts[guesser{address: network(address), proof: proof}]; proof != "" && e != nil {
		l.remove(e) // it is right no more
	}
	l.mu.Unlock()
	if locked := l.locked(address, user, ""); locked != nil {
		return locked
	}
	l.mu.Lock()
	defer l.mu.Unlock()
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

// right notes that a credential was right.
func (l *lockout) right(address, proof string) {
	if l.free == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.get(guesser{address: network(address), proof: proof}, true).right = true
}
