package protocol

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/git"
)

// InfiniteDepth is the depth that a client sends to get the whole history.
const InfiniteDepth = 0x7fffffff

// SinceEver is DeepenSince for "deepen-since 0", which is a limit that leaves nothing out.
const SinceEver = -1

// Fetch asks for a pack, or for a step of negotiation.
type Fetch struct {
	Wants    []git.ObjectID // sorted, without repeats
	WantRefs []git.RefName  // in the order they were sent
	Haves    []git.ObjectID // in the order they were sent, without repeats
	Shallow  []git.ObjectID // sorted, without repeats

	Depth          int // 0: not asked for
	DeepenRelative bool
	DeepenSince    int64 // seconds since the epoch; 0: not asked for; SinceEver: asked for without a limit
	DeepenNot      []string

	Filter *Filter // nil: none

	Done, WaitForDone, ThinPack, OfsDelta, IncludeTag, NoProgress, SidebandAll bool
}

// Deepens tells whether the request changes the client's shallow boundary.
func (f *Fetch) Deepens() bool { return f.Depth > 0 || f.DeepenSince != 0 || len(f.DeepenNot) > 0 }

// refLists are pooled: a clone of a thousand refs names each of them, and is asked for again and again.
var refLists = sync.Pool{New: func() any { return new([]git.RefName) }}

// maxPooledRefs is the longest list that is kept for the next request.
const maxPooledRefs = 16 << 10

func (p *parser) fetchArgument(line []byte) error {
	f := p.req.Fetch
	key, value, hasValue := bytes.Cut(line, []byte(" "))
	if hasValue {
		return p.fetchValue(f, key, value, line)
	}
	if string(key) == "sideband-all" && !p.offer.SidebandAll {
		return unexpected(line)
	}
	switch string(key) {
	case "done":
		f.Done = true
	case "wait-for-done":
		f.WaitForDone = true
	case "thin-pack":
		f.ThinPack = true
	case "ofs-delta":
		f.OfsDelta = true
	case "include-tag":
		f.IncludeTag = true
	case "no-progress":
		f.NoProgress = true
	case "sideband-all":
		f.SidebandAll = true
	case "deepen-relative":
		f.DeepenRelative = true
	default:
		return unexpected(line)
	}
	return nil
}

func (p *parser) fetchValue(f *Fetch, key, value, line []byte) error {
	if string(key) == "want-ref" && !p.offer.RefInWant || string(key) == "filter" && !p.offer.Filter {
		return unexpected(line)
	}
	switch string(key) {
	case "want":
		return p.addToSet(&f.Wants, &p.wants, value, p.limits.Wants, "want")
	case "have":
		if p.haves++; p.haves > p.limits.Haves {
			return tooMany("have", p.limits.Haves)
		}
		id, err := p.objectID(value, "have")
		if err != nil {
			return err
		}
		if _, repeat := p.seen[id]; repeat {
			return nil
		}
		p.seen[id] = struct{}{}
		f.Haves = append(double(f.Haves), id)
	case "shallow":
		return p.addToSet(&f.Shallow, &p.shallow, value, p.limits.Shallow, "shallow")
	case "want-ref":
		if p.wantRefs++; p.wantRefs > p.limits.Wants {
			return tooMany("want-ref", p.limits.Wants)
		}
		if _, repeat := p.named[git.RefName(value)]; repeat {
			return nil
		}
		name, err := git.ParseRefName(string(value))
		if err != nil {
			return invalid("unknown ref %.200q", value)
		}
		p.wantRef(name)
	case "deepen":
		depth, ok := parseNumber(string(value), 32)
		if !ok || depth <= 0 {
			return invalid("bad deepen %.80q: want a number from 1 to %d", value, InfiniteDepth)
		}
		f.Depth = int(depth)
	case "deepen-since":
		since, ok := parseNumber(string(value), 64)
		if !ok || since < 0 {
			return invalid("bad deepen-since %.80q: want seconds since 1970", value)
		}
		if f.DeepenSince = since; since == 0 {
			f.DeepenSince = SinceEver
		}
	case "deepen-not":
		if len(f.DeepenNot) >= p.limits.DeepenNot {
			return tooMany("deepen-not", p.limits.DeepenNot)
		}
		f.DeepenNot = append(f.DeepenNot, string(value))
	case "filter":
		if f.Filter != nil {
			return invalid("multiple filter-specs cannot be combined")
		}
		filter, err := ParseFilter(string(value), p.limits)
		if err != nil {
			return err
		}
		f.Filter = filter
	default:
		return unexpected(line)
	}
	return nil
}

// parseNumber reads a number as C does, after any space: decimal, octal after a 0, hexadecimal after 0x. Go's other prefixes and
// underscores are none.
func parseNumber(s string, bits int) (int64, bool) {
	s = strings.TrimLeft(s, " \t\n\v\f\r")
	if !isCNumber(s) {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 0, bits)
	return n, err == nil
}

// isCNumber refuses what strconv reads in base 0 and C does not.
func isCNumber(s string) bool {
	digits := strings.ToLower(strings.TrimLeft(s, "+-"))
	return !strings.Contains(s, "_") && !strings.HasPrefix(digits, "0b") && !strings.HasPrefix(digits, "0o")
}

// double makes room in a full list for as much again: append alone would copy a long one five times over.
func double[T any](list []T) []T {
	if len(list) == cap(list) {
		return slices.Grow(list, max(16, len(list)))
	}
	return list
}

func tooMany(key string, limit int) error { return invalid("more than %d %s lines", limit, key) }

func (p *parser) objectID(value []byte, key string) (git.ObjectID, error) {
	id, err := git.ParseObjectID(value)
	if err != nil || id.Format() != p.format {
		return id, invalid("bad %s line: expected an object ID, not %.80q", key, value)
	}
	return id, nil
}

// addToSet adds an ID to a list whose order has no meaning; lines counts them. A full list drops its repeats before it grows, so
// that a million lines that say the same, which gzip sends for nothing, take no memory.
func (p *parser) addToSet(list *[]git.ObjectID, lines *int, value []byte, limit int, key string) error {
	if *lines++; *lines > limit {
		return tooMany(key, limit)
	}
	id, err := p.objectID(value, key)
	if err != nil {
		return err
	}
	ids := *list
	if n := len(ids); n > 0 && ids[n-1] == id {
		return nil
	}
	if len(ids) == cap(ids) && len(ids) > 0 {
		if ids = SortIDs(ids); len(ids) > cap(ids)/2 {
			ids = slices.Grow(ids, cap(ids))
		}
	}
	*list = append(double(ids), id)
	return nil
}

// fetch reads the arguments and brings the lists whose order has no meaning into canonical order.
func (p *parser) fetch(arguments bool) error {
	pooled := refLists.Get().(*[]git.RefName)
	p.refs, p.seen = (*pooled)[:0], make(map[git.ObjectID]struct{})
	err := p.lines(arguments, p.fetchArgument)
	f := p.req.Fetch
	f.WantRefs = slices.Clone(p.refs)
	f.Wants = SortIDs(f.Wants)
	f.Shallow = SortIDs(f.Shallow)
	if cap(p.refs) <= maxPooledRefs {
		clear(p.refs) // the names belong to the request
		*pooled = p.refs
		refLists.Put(pooled)
	}
	return err
}

// keptRepeats is how many want-refs are kept with their repeats, each of which is answered, as by git. Beyond that no client means
// them: a name that is sent a million times is a few KiB of gzip and 100 MB of an answer.
const keptRepeats = 4096

func (p *parser) wantRef(name git.RefName) {
	if len(p.refs) >= keptRepeats {
		if p.named == nil {
			p.named = make(map[git.RefName]struct{}, 2*keptRepeats)
			for _, name := range p.refs {
				p.named[name] = struct{}{}
			}
		}
		if _, repeat := p.named[name]; repeat { // the one that filled the list
			return
		}
		p.named[name] = struct{}{}
	}
	p.refs = append(p.refs, name)
}

// SortIDs sorts IDs in place and drops repeats.
func SortIDs(ids []git.ObjectID) []git.ObjectID {
	slices.SortFunc(ids, git.ObjectID.Compare)
	return slices.Compact(ids)
}
