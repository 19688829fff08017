package app

import (
	"math"
	"math/rand/v2"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Sticky says what keeps a client in its pool. The zero Sticky: nothing does.
type Sticky struct{ kind, name string }

const (
	byCookie = "cookie"
	byHeader = "header"
	byClient = "client"
)

// ParseSticky reads "cookie:NAME", "header:NAME", "client" or nothing.
func ParseSticky(text string) (Sticky, error) {
	kind, name, named := strings.Cut(text, ":")
	switch {
	case text == "", text == byClient:
		return Sticky{kind: text}, nil
	case (kind == byCookie || kind == byHeader) && named && isToken(name):
		return Sticky{kind, name}, nil
	}
	return Sticky{}, fault.New(fault.Invalid, "%.80q keeps no client in its pool: write \"cookie:NAME\", \"header:NAME\", \"client\", or nothing", text)
}

// isToken tells what may name a header or a cookie (RFC 9110, section 5.6.2).
func isToken(name string) bool {
	const others = "!#$%&'*+-.^_`|~"
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte(others, c) < 0 {
			return false
		}
	}
	return name != ""
}

// key is what two requests of one client have in common; empty: nothing is known.
func (s Sticky) key(a *ask) string {
	switch s.kind {
	case byHeader:
		return a.header.Get(s.name)
	case byCookie:
		return cookie(a.header["Cookie"], s.name)
	case byClient:
		if a.client.IsValid() {
			return a.client.Unmap().WithZone("").String()
		}
	}
	return ""
}

// cookie is the value of a cookie in Cookie fields (RFC 6265, section 4.2.1). By HTTP/2 there may be more than one (RFC 9113, section 8.2.3).
func cookie(fields []string, name string) string {
	for _, field := range fields {
		for pair := range strings.SplitSeq(field, ";") {
			if n, value, ok := strings.Cut(strings.TrimLeft(pair, " \t"), "="); ok && n == name {
				return strings.Trim(value, `"`)
			}
		}
	}
	return ""
}

// choose is the pool for a request: by the key, if there is one, else by lot, each with its share. Pools of which no worker can be used leave theirs to
// the others; if there is no other, one of them is told that.
//
// By the key it is a race, which each pool runs in a time that hangs on the key, its name and its share alone (weighted rendezvous hashing): all
// gateways agree, a restart changes nothing, and where shares change no more clients change their pool than have to.
func choose(pools []*pool, key string) *pool {
	if len(pools) == 1 {
		return pools[0]
	}
	var best *pool
	least, usable := math.Inf(1), false
	for _, p := range pools {
		u := rand.Float64()
		if key != "" {
			u = unit(p.name, key)
		}
		could := p.usable()
		if usable && !could {
			continue
		}
		// A pool without a share is for when no other can be used.
		took := math.MaxFloat64
		if share := p.share.Load(); share > 0 {
			took = -math.Log(1-u) / float64(share)
		}
		if best == nil || took < least || could && !usable {
			best, least, usable = p, took, could
		}
	}
	return best
}

// unit maps a pool and a key to [0, 1), everywhere alike: FNV-1a, and the finalizer of SplitMix64, since the former hardly stirs the upper bits.
func unit(pool, key string) float64 {
	h := uint64(14695981039346656037)
	for _, text := range [...]string{pool, "\x00", key} {
		for i := range len(text) {
			h = (h ^ uint64(text[i])) * 1099511628211
		}
	}
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	h ^= h >> 31
	return float64(h>>11) / (1 << 53)
}
