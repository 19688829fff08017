// Package crawl keeps crawlers from using up a server. Pages that cost much to make are for visitors who keep a cookie
// or have signed in. They have a budget of time for each network, and a limit of how many are made at once. Archives of
// anonymous callers count against the budget, too. Nothing of it concerns Git's own requests.
package crawl

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/packhorse-git/packhorse/internal/fault"
)

const (
	refillTime  = 5 * time.Minute        // in which a network gets back its whole budget
	freeTime    = 200 * time.Millisecond // of a page that most often costs little
	maxNetworks = 50_000
	patience    = 2 * time.Second // to wait for a seat
	maxWaiting  = 8               // requests that wait for each seat
	// maxRest limits the rest of a seat after a page, which is as long as the page took. So Git has time between the pages
	// of crawlers.
	maxRest = 100 * time.Millisecond

	cookieName = "packhorse-seen"
	cookieLife = 7 * 24 * time.Hour

	// SeenPath is the path that gives a browser the cookie, and leads it back to where it came from.
	SeenPath = "/-/seen"
	seenMark = "seen" // in the query of an address that a browser was led back to: the time
	seenLife = time.Minute
)

// Gate admits requests for costly pages. Safe for concurrent use.
type Gate struct {
	key    []byte
	budget time.Duration // of making pages, that a network can save up; 0: no limit
	now    func() time.Time
	seats  chan struct{}
	queue  chan struct{} // has those who wait for a seat, so that they do not fill the lane of all pages

	mu       sync.Mutex
	networks *simplelru.LRU[netip.Prefix, *account]
}

// account is the time that a network has left.
type account struct {
	left time.Duration
	at   time.Time
}

// New returns a Gate. All gateways that one name leads to need the same key. budget is the time of the server that a
// network can use for costly pages at once; 0 means no limit.
func New(key []byte, budget time.Duration, now func() time.Time) *Gate {
	networks, _ := simplelru.NewLRU[netip.Prefix, *account](maxNetworks, nil) // the size is valid
	seats := max(1, runtime.GOMAXPROCS(0)/2)
	return &Gate{key: key, budget: budget, now: now, seats: make(chan struct{}, seats),
		queue: make(chan struct{}, seats*maxWaiting), networks: networks}
}

// networkOf returns the network of a client: those of one owner most often share it.
func networkOf(remote string) netip.Prefix {
	address, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	bits := 24
	ip := address.Addr().Unmap()
	if ip.Is6() {
		bits = 48
	}
	network, _ := ip.Prefix(bits) // the number of bits is valid
	return network
}

// Needs reports whether a browser has to get the cookie first. It then has a response: a redirect, or 429 to a client
// that keeps no cookies.
func (g *Gate) Needs(w http.ResponseWriter, r *http.Request) (bool, error) {
	if cookie, err := r.Cookie(cookieName); err == nil && hmac.Equal([]byte(cookie.Value), []byte(g.cookie(r))) {
		return false, nil
	}
	// later it is the address of a bookmark or of another visitor
	if at, _ := strconv.ParseInt(r.URL.Query().Get(seenMark), 10, 64); g.now().Unix()-at < int64(seenLife.Seconds()) {
		return false, fault.Retry(fault.Exhausted, time.Hour, "this page costs much to make: allow cookies or sign in")
	}
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, SeenPath+"?to="+url.QueryEscape(r.URL.RequestURI()), http.StatusFound)
	return true, nil
}

// cookie returns the value of the cookie for the network of a request.
func (g *Gate) cookie(r *http.Request) string {
	mac := hmac.New(sha256.New, g.key)
	mac.Write([]byte(cookieName + networkOf(r.RemoteAddr).String()))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// Seen gives a browser the cookie and leads it back.
func (g *Gate) Seen(w http.ResponseWriter, r *http.Request, secure bool) error {
	to := r.URL.Query().Get("to")
	if !strings.HasPrefix(to, "/") || strings.HasPrefix(to, "//") || strings.ContainsAny(to, "\\\r\n\t") {
		return fault.New(fault.Invalid, "there is no page of this server at that address")
	}
	path, query, _ := strings.Cut(to, "?")
	values, _ := url.ParseQuery(query) // without invalid parts
	values.Set(seenMark, strconv.FormatInt(g.now().Unix(), 10))
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: g.cookie(r), Path: "/", MaxAge: int(cookieLife.Seconds()),
		HttpOnly: true, Secure: secure, SameSite: http.SameSiteLaxMode})
	w.Header().Set("Cache-Control", "no-store")
	http.Redirect(w, r, path+"?"+values.Encode(), http.StatusFound)
	return nil
}

// Charge admits a request, or fails with Exhausted. The caller has to call end when the server has done its work, which
// the network of the client pays for. Further calls of end have no effect.
func (g *Gate) Charge(remote string) (end func(), err error) { return g.charge(remote, 0, 0) }

// ChargeSlow is Charge for pages that most often cost little. The network pays for the time beyond 200 ms, and gets no
// more of these pages when it owes a whole budget.
func (g *Gate) ChargeSlow(remote string) (end func(), err error) {
	return g.charge(remote, -g.budget, freeTime)
}

// charge is Charge for networks that have more than least left. The time free costs nothing.
func (g *Gate) charge(remote string, least, free time.Duration) (end func(), err error) {
	if g.budget == 0 {
		return func() {}, nil
	}
	network := networkOf(remote)
	if left := g.spend(network, 0); left <= least {
		wait := time.Duration(float64(least-left)/float64(g.budget)*float64(refillTime)) + time.Second
		return nil, fault.Retry(fault.Exhausted, wait, "your network has used up its time for costly pages and "+
			"archives: try again in %s seconds, or sign in", fault.RetryHeader(wait))
	}
	begin := g.now()
	return sync.OnceFunc(func() { g.spend(network, max(0, g.now().Sub(begin)-free)) }), nil
}

// Enter is Charge, and limits how many pages are made at once.
func (g *Gate) Enter(ctx context.Context, remote string) (leave func(), err error) {
	if _, err := g.Charge(remote); err != nil {
		return nil, err
	}
	busy := fault.Retry(fault.Exhausted, fault.RetryMuchLater, "the server is busy with pages that cost much to make: "+
		"try again in %s seconds", fault.RetryHeader(fault.RetryMuchLater))
	select {
	case g.queue <- struct{}{}:
		defer func() { <-g.queue }()
	default:
		return nil, busy
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case g.seats <- struct{}{}:
	case <-late.C:
		return nil, busy
	case <-ctx.Done():
		return nil, fault.Wrap(fault.Cancelled, "the client has gone", ctx.Err())
	}
	begin := g.now()
	end, err := g.Charge(remote)
	if err != nil {
		<-g.seats
		return nil, err
	}
	return func() {
		time.AfterFunc(min(g.now().Sub(begin), maxRest), func() { <-g.seats })
		end()
	}, nil
}

// spend takes time from a network, and returns the rest of its budget.
func (g *Gate) spend(network netip.Prefix, cost time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	a, ok := g.networks.Get(network)
	if !ok {
		a = &account{left: g.budget, at: now}
		g.networks.Add(network, a)
	}
	a.left = min(g.budget, a.left+time.Duration(float64(now.Sub(a.at))/float64(refillTime)*float64(g.budget)))
	a.at = now
	a.left -= cost
	return a.left
}
