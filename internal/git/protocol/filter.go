package protocol

import (
	"slices"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// FilterKind is the kind of a filter (git-rev-list(1), --filter).
type FilterKind uint8

const (
	FilterBlobNone FilterKind = iota + 1
	FilterBlobLimit
	FilterTree
	FilterSparse
	FilterType
	FilterCombine
)

// Filter is a parsed object filter.
type Filter struct {
	Kind   FilterKind
	Limit  uint64         // FilterBlobLimit: bytes; FilterTree: depth
	Sparse string         // FilterSparse: what names the blob with the patterns; an object ID once resolved
	Type   git.ObjectType // FilterType
	Sub    []*Filter      // FilterCombine: an object passes if it passes all

	Combined bool // it was written as a combination, even with one member
}

// Name is what git's configuration calls the kind of filter (git-config(1), "uploadpackfilter.<filter>.allow").
func (f *Filter) Name() string {
	switch f.Kind {
	case FilterBlobNone:
		return "blob:none"
	case FilterBlobLimit:
		return "blob:limit"
	case FilterTree:
		return "tree"
	case FilterSparse:
		return "sparse:oid"
	case FilterType:
		return "object:type"
	}
	return "combine"
}

// reservedInCombine are the characters that have to be percent-encoded in a member of a combine: filter, as space and
// everything below it.
const reservedInCombine = "~`!@#$^&*()[]{}\\;'\",<>?"

// ParseFilter reads a filter specification, every form that git accepts, and brings it into a canonical order.
func ParseFilter(s string, limits Limits) (*Filter, error) {
	limits = limits.withDefaults()
	if len(s) > limits.FilterLength {
		return nil, invalid("filter specification longer than %d bytes", limits.FilterLength)
	}
	members := 0
	return parseFilter(s, limits, 0, &members)
}

func parseFilter(s string, limits Limits, depth int, members *int) (*Filter, error) {
	kind, value, _ := strings.Cut(s, ":")
	if kind == "combine" && strings.HasPrefix(s, "combine:") {
		return parseCombine(value, limits, depth, members)
	}
	if *members++; *members > limits.FilterMembers {
		return nil, invalid("more than %d filters in one specification", limits.FilterMembers)
	}
	bad := func() (*Filter, error) { return nil, invalid("invalid filter-spec %.200q", s) }
	switch {
	case s == "blob:none":
		return &Filter{Kind: FilterBlobNone}, nil
	case strings.HasPrefix(s, "blob:limit="):
		n, ok := git.ParseSize(s[len("blob:limit="):])
		if !ok {
			return bad()
		}
		return &Filter{Kind: FilterBlobLimit, Limit: n}, nil
	case strings.HasPrefix(s, "tree:"):
		n, ok := git.ParseSize(value)
		if !ok {
			return bad()
		}
		return &Filter{Kind: FilterTree, Limit: n}, nil
	case strings.HasPrefix(s, "sparse:oid="):
		name := s[len("sparse:oid="):]
		if name == "" || strings.ContainsAny(name, "\x00\n") {
			return bad()
		}
		return &Filter{Kind: FilterSparse, Sparse: name}, nil
	case strings.HasPrefix(s, "sparse:path="):
		return nil, invalid("sparse:path filters are no longer supported by git")
	case strings.HasPrefix(s, "object:type="):
		t, err := git.ParseObjectType(s[len("object:type="):])
		if err != nil {
			return bad()
		}
		return &Filter{Kind: FilterType, Type: t}, nil
	}
	return bad()
}

func parseCombine(s string, limits Limits, depth int, members *int) (*Filter, error) {
	if s == "" {
		return nil, invalid("expected something after combine:")
	}
	if depth >= limits.FilterDepth {
		return nil, invalid("filters nested more than %d deep", limits.FilterDepth)
	}
	f := &Filter{Kind: FilterCombine, Combined: true}
	for member := range strings.SplitSeq(s, "+") {
		for i := range len(member) {
			if c := member[i]; c <= ' ' || strings.IndexByte(reservedInCombine, c) >= 0 {
				return nil, invalid("must escape char in sub-filter-spec: %q", c)
			}
		}
		sub, err := parseFilter(unescape(member), limits, depth+1, members)
		if err != nil {
			return nil, err
		}
		if sub.Kind == FilterCombine {
			f.Sub = append(f.Sub, sub.Sub...)
		} else {
			f.Sub = append(f.Sub, sub)
		}
	}
	f.canonical()
	if len(f.Sub) == 1 {
		f.Sub[0].Combined = true
		return f.Sub[0], nil
	}
	return f, nil
}

// canonical sorts the members of a combination: all have to pass, so their order has no meaning, nor has a repeat. A
// sparse filter is another matter: git leaves out trees that each of two equal ones lets pass, so that two are not one.
func (f *Filter) canonical() {
	slices.SortFunc(f.Sub, func(a, b *Filter) int { return strings.Compare(a.String(), b.String()) })
	f.Sub = slices.CompactFunc(f.Sub, func(a, b *Filter) bool { return a.String() == b.String() && !a.hasSparse() })
}

// hasSparse reports whether it is a sparse filter, or has one as a member.
func (f *Filter) hasSparse() bool {
	return f.Kind == FilterSparse || slices.ContainsFunc(f.Sub, (*Filter).hasSparse)
}

// unescape decodes %xx; a percent sign without two digits stays, as in git.
func unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil && n > 0 {
				b.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// String returns the canonical specification: numbers without units, members of a combination sorted and escaped.
func (f *Filter) String() string {
	if f == nil {
		return ""
	}
	switch f.Kind {
	case FilterBlobNone:
		return "blob:none"
	case FilterBlobLimit:
		return "blob:limit=" + strconv.FormatUint(f.Limit, 10)
	case FilterTree:
		return "tree:" + strconv.FormatUint(f.Limit, 10)
	case FilterSparse:
		return "sparse:oid=" + f.Sparse
	case FilterType:
		return "object:type=" + f.Type.String()
	}
	members := make([]string, len(f.Sub))
	for i, sub := range f.Sub {
		members[i] = escape(sub.String())
	}
	return "combine:" + strings.Join(members, "+")
}

// escape percent-encodes the characters that are not allowed in a member of a combination.
func escape(s string) string {
	const hex = "0123456789abcdef"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c == '%' || c == '+' || c >= 0x7f || strings.IndexByte(reservedInCombine, c) >= 0 {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// ResolveSparse replaces the name of every blob with sparse patterns by its ID from resolve.
func (f *Filter) ResolveSparse(resolve func(name string) (git.ObjectID, error)) error {
	if f == nil {
		return nil
	}
	if f.Kind == FilterSparse {
		id, err := resolve(f.Sparse)
		if err != nil {
			return err
		}
		f.Sparse = id.String()
	}
	for _, sub := range f.Sub {
		if err := sub.ResolveSparse(resolve); err != nil {
			return err
		}
	}
	f.canonical()
	return nil
}
