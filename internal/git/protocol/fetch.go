package protocol

import (
	"bytes"
	"hash/maphash"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// InfiniteDepth is the depth that a client sends to get the whole history.
const InfiniteDepth = 0x7fffffff

// SinceEver is DeepenSince for "deepen-since 0", a limit that includes all commits.
const SinceEver = -1

// Fetch is a request for a pack, or for a step of negotiation.
type Fetch struct {
	Wants    []git.ObjectID // sorted, without repeats
	WantRefs []git.RefName  // in the order they were sent
	Haves    []git.ObjectID // in the order they were sent, without repeats
	Shallow  []git.ObjectID // sorted, without repeats

	Depth          int // 0: not requested
	DeepenRelative bool
	DeepenSince    int64 // seconds since the epoch, or SinceEver; 0: not requested
	DeepenNot      []string

	Filter *Filter // nil: none

	Done, WaitForDone, ThinPack, OfsDelta, IncludeTag, NoProgress, SidebandAll bool
}

// Deepens reports whether the request changes the client's shallow boundary.
func (f *Fetch) Deepens() bool { return f.Depth > 0 || f.DeepenSince != 0 || len(f.DeepenNot) > 0 }

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
		if p.haveLines++; p.haveLines > p.limits.Haves {
			return tooMany("have", p.limits.Haves)
		}
		id, err := p.objectID(value, "have")
		if err != nil {
			return err
		}
		return p.addHave(f, id)
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
			return invalid("unknown ref %q", fault.Short(value))
		}
		return p.wantRef(name)
	case "deepen":
		depth, ok := git.ParseInt(string(value), 32)
		if !ok || depth <= 0 {
			return invalid("bad deepen %.80q: want a number from 1 to %d", value, InfiniteDepth)
		}
		f.Depth = int(depth)
	case "deepen-since":
		since, ok := git.ParseInt(string(value), 64)
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
		return p.hold(nameCost + int64(len(value)))
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

// nameCost is the memory of a name beside its characters, in bytes: its place in lists, including a previous shorter
// list, and in a map of names. TestChargeCoversMemory compares it, and other counts, with the allocations.
const nameCost = 64

// grow doubles the capacity of a list: append alone would copy a long list five times. The whole new list is counted,
// because the old one stays in memory for a while.
func grow[T any](p *parser, list []T) ([]T, error) {
	more := max(16, len(list))
	if err := p.hold(int64(len(list)+more) * int64(unsafe.Sizeof(list[:1][0]))); err != nil {
		return list, err
	}
	return slices.Grow(list, more), nil
}

func tooMany(key string, limit int) error { return invalid("more than %d %s lines", limit, key) }

func (p *parser) objectID(value []byte, key string) (git.ObjectID, error) {
	id, err := git.ParseObjectID(value)
	if err != nil || id.Format() != p.format {
		return id, invalid("bad %s line: expected an object ID, not %.80q", key, value)
	}
	return id, nil
}

// addToSet adds an ID to a list whose order has no meaning; lines counts them. A full list drops its repeats before it
// grows, so that a million lines that say the same, which gzip sends for nothing, take no memory.
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
	if len(ids) == cap(ids) {
		if ids = SortIDs(ids); len(ids) == 0 || len(ids) > cap(ids)/2 {
			if ids, err = grow(p, ids); err != nil {
				return err
			}
		}
	}
	*list = append(ids, id)
	return nil
}

// addHave adds a have, if it is not a repeat.
func (p *parser) addHave(f *Fetch, id git.ObjectID) (err error) {
	if len(f.Haves) == cap(f.Haves) {
		if f.Haves, err = grow(p, f.Haves); err != nil {
			return err
		}
		if err = p.hold(placesSize(cap(f.Haves))); err != nil {
			return err
		}
		p.haves.grow(f.Haves, cap(f.Haves))
	}
	if p.haves.add(f.Haves, id) {
		f.Haves = append(f.Haves, id)
	}
	return nil
}

// places maps IDs to their positions in a list without repeats. It uses about 8 bytes for each ID, a fifth of a map.
type places struct {
	seed  maphash.Seed
	slots []uint32 // places plus one, each at or behind the slot of its ID's hash; 0: free
}

// placesSize returns the memory of the places of a list of n IDs in bytes.
func placesSize(n int) int64 { return int64(4 * slotsFor(n)) }

// slotsFor returns a power of two of which n is at most two thirds.
func slotsFor(n int) int { return 1 << bits.Len(uint(n+n/2)) }

// grow makes room for a list of n IDs, of which these are the first.
func (s *places) grow(ids []git.ObjectID, n int) {
	if s.slots == nil {
		s.seed = maphash.MakeSeed() // clients choose IDs, and must not choose their slots
	}
	s.slots = make([]uint32, slotsFor(n))
	for i, id := range ids {
		s.add(ids[:i], id)
	}
}

// add gives the next ID of a list its place, or reports false if the list has it already.
func (s *places) add(ids []git.ObjectID, id git.ObjectID) bool {
	mask := uint64(len(s.slots) - 1)
	slot := maphash.Bytes(s.seed, id.Raw()) & mask
	for ; s.slots[slot] != 0; slot = (slot + 1) & mask {
		if ids[s.slots[slot]-1] == id {
			return false
		}
	}
	s.slots[slot] = uint32(len(ids) + 1)
	return true
}

// fetch reads the arguments and brings the lists whose order has no meaning into canonical order.
func (p *parser) fetch(arguments bool) error {
	err := p.lines(arguments, p.fetchArgument)
	f := p.req.Fetch
	f.Wants, f.Shallow = SortIDs(f.Wants), SortIDs(f.Shallow)
	return err
}

// keptRepeats is how many want-refs are kept with their repeats, each of which is answered, as by git. Beyond that no
// client means them: a name that is sent a million times is a few KiB of gzip and 100 MB of an answer.
const keptRepeats = 4096

func (p *parser) wantRef(name git.RefName) error {
	f := p.req.Fetch
	if len(f.WantRefs) >= keptRepeats {
		if p.named == nil {
			p.named = make(map[git.RefName]struct{}, 2*keptRepeats)
			for _, name := range f.WantRefs {
				p.named[name] = struct{}{}
			}
		}
		if _, repeat := p.named[name]; repeat { // the one that filled the list
			return nil
		}
		p.named[name] = struct{}{}
	}
	f.WantRefs = append(f.WantRefs, name)
	return p.hold(nameCost + int64(len(name)))
}

// SortIDs sorts IDs in place and removes duplicates.
func SortIDs(ids []git.ObjectID) []git.ObjectID {
	slices.SortFunc(ids, git.ObjectID.Compare)
	return slices.Compact(ids)
}
