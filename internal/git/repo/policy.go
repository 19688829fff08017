package repo

import (
	"cmp"
	"maps"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Policy lists what clients may request of a repository. It is the repository's own config (git-config(1),
// uploadpack.*, uploadpackfilter.*, lsrefs.* and transfer.*), with the server's defaults for missing keys. It is
// immutable after the repository was opened.
//
// An invalid value is an error, as in git, because the rule may be a restriction. Git reads all values of most keys,
// and fails on any invalid one. Of lsrefs.unborn and transfer.advertiseObjectInfo it reads only the last value. This
// package does the same.
type Policy struct {
	Filter      bool        // uploadpack.allowFilter: clients may use filters
	Filters     FilterRules // uploadpackfilter.*: the allowed filters
	RefInWant   bool        // uploadpack.allowRefInWant: wants may be names of refs
	SidebandAll bool        // uploadpack.allowSidebandAll: clients may request a side-band for the whole response

	// Wants that are allowed besides the advertised refs, in versions 0 and 1.
	AllowTip       bool // uploadpack.allowTipSHA1InWant: the tips of hidden refs
	AllowReachable bool // uploadpack.allowReachableSHA1InWant: objects that refs reach
	AllowAny       bool // uploadpack.allowAnySHA1InWant: every object that exists; implies the two above

	// OwnAny reports whether AllowAny is set by the repository's own config. Then it applies to every protocol version,
	// also with hidden refs or with objects borrowed from other repositories.
	OwnAny bool

	// Grace is how long objects may be wanted after a ref that reached them has changed (uploadpack.grace); 0: not at all.
	Grace time.Duration

	Purging bool // packhorse.purging: objects are being purged, and only what refs reach may be wanted

	KeepAlive  time.Duration // uploadpack.keepAlive: maximum time without output in a pack; 0: no limit
	Unborn     Unborn        // lsrefs.unborn
	SessionID  bool          // transfer.advertiseSID
	ObjectInfo bool          // transfer.advertiseObjectInfo: the sizes of objects may be requested
	Bundles    Bundles       // uploadpack.advertiseBundleURIs; only a repository's own config has one
}

// Unborn determines whether clients get the branch of an unborn HEAD (git-config(1), lsrefs.unborn).
type Unborn string

const (
	UnbornAdvertise Unborn = "advertise" // on request, and the server advertises that
	UnbornAllow     Unborn = "allow"     // on request
	UnbornIgnore    Unborn = "ignore"    // never
)

// ParseUnborn parses a value in lower case, as git does.
func ParseUnborn(s string) (Unborn, error) {
	switch u := Unborn(s); u {
	case UnbornAdvertise, UnbornAllow, UnbornIgnore:
		return u, nil
	}
	return "", fault.New(fault.Invalid, `%.40q is not "advertise", "allow" or "ignore"`, s)
}

// DefaultPolicy returns the policy without any configuration. Unlike in git's own defaults, Filter, RefInWant,
// SidebandAll and SessionID are on, because git clients benefit from them.
func DefaultPolicy() Policy {
	return Policy{
		Filter: true, RefInWant: true, SidebandAll: true, Grace: time.Hour, KeepAlive: 5 * time.Second,
		Unborn: UnbornAdvertise, SessionID: true, ObjectInfo: true,
	}
}

// policyKey reads one key of a config into a Policy.
type policyKey struct {
	last bool // only the last value is read: earlier ones may be invalid
	read func(p *Policy, v variable) error
}

// policyKeys returns the keys with fixed names. The others are in wantKeys and FilterRules.read.
func policyKeys() map[string]policyKey {
	each := func(field func(p *Policy) *bool) policyKey {
		return policyKey{read: func(p *Policy, v variable) error { return v.readBool(field(p)) }}
	}
	return map[string]policyKey{
		"uploadpack.allowfilter":      each(func(p *Policy) *bool { return &p.Filter }),
		"uploadpack.allowrefinwant":   each(func(p *Policy) *bool { return &p.RefInWant }),
		"uploadpack.allowsidebandall": each(func(p *Policy) *bool { return &p.SidebandAll }),
		"transfer.advertisesid":       each(func(p *Policy) *bool { return &p.SessionID }),
		"transfer.advertiseobjectinfo": {last: true, read: func(p *Policy, v variable) error {
			return v.readBool(&p.ObjectInfo)
		}},
		"uploadpackfilter.allow": {read: func(p *Policy, v variable) error {
			allow := true
			err := v.readBool(&allow)
			p.Filters.refuseOthers = !allow
			return err
		}},
		"uploadpack.keepalive": {read: (*Policy).readKeepAlive},
		"uploadpack.grace":     {read: (*Policy).readGrace},
		"lsrefs.unborn":        {last: true, read: (*Policy).readUnborn},
	}
}

// newPolicy applies a config to the defaults.
func newPolicy(c Config, defaults Policy) (*Policy, error) {
	p, keys := &defaults, policyKeys()
	p.Filters = p.Filters.clone()
	for i, v := range c.variables {
		key, known := keys[v.key]
		var err error
		switch {
		case !known:
			err = p.Filters.read(v)
		case key.last && c.last[v.key] != i:
		default:
			err = key.read(p, v)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := p.readWants(c); err != nil {
		return nil, err
	}
	p.Bundles = bundles(c)
	return p, nil
}

// wantSet is the set of allowed wants as git builds it. Each of the three keys adds or removes its part of the set, so
// that "allowAnySHA1InWant = false" also removes the parts of the other two.
type wantSet uint8

const (
	allowTip wantSet = 1 << iota
	allowReachable
	allowAnyAlone
	allowAny = allowTip | allowReachable | allowAnyAlone
)

func (w *wantSet) read(v variable, part wantSet) error {
	var on bool
	err := v.readBool(&on)
	if *w &^= part; on {
		*w |= part
	}
	return err
}

// wants returns the set for the fields.
func (p *Policy) wants() (set wantSet) {
	if p.AllowTip {
		set |= allowTip
	}
	if p.AllowReachable {
		set |= allowReachable
	}
	if p.AllowAny {
		set |= allowAny
	}
	return set
}

// wantKeys returns the three keys.
func wantKeys() map[string]wantSet {
	return map[string]wantSet{
		"uploadpack.allowtipsha1inwant": allowTip, "uploadpack.allowreachablesha1inwant": allowReachable,
		"uploadpack.allowanysha1inwant": allowAny,
	}
}

// readWants applies the three keys of a config to the defaults.
func (p *Policy) readWants(c Config) error {
	set, own, keys := p.wants(), wantSet(0), wantKeys()
	for _, v := range c.variables {
		part := keys[v.key]
		if part == 0 {
			continue
		}
		if err := cmp.Or(set.read(v, part), own.read(v, part)); err != nil {
			return err
		}
	}
	p.AllowTip, p.AllowReachable, p.AllowAny = set&allowTip != 0, set&allowReachable != 0, set == allowAny
	p.OwnAny = own == allowAny
	if _, isPurging := c.Get(PurgingKey); isPurging { // only what refs reach
		p.AllowAny, p.OwnAny, p.Grace, p.Purging = false, false, 0, true
	}
	return nil
}

func (p *Policy) readKeepAlive(v variable) error {
	seconds, err := v.int()
	p.KeepAlive = time.Duration(max(seconds, 0)) * time.Second
	return err
}

func (p *Policy) readGrace(v variable) (err error) {
	if p.Grace, err = time.ParseDuration(v.value); err != nil || p.Grace < 0 {
		return v.damaged(`a duration, as in "1h" or "0"`)
	}
	return nil
}

func (p *Policy) readUnborn(v variable) error {
	if v.bare {
		return v.damaged("a value")
	}
	u, err := ParseUnborn(v.value)
	if err != nil {
		return v.damaged(`"advertise", "allow" or "ignore"`)
	}
	p.Unborn = u
	return nil
}

// FilterRules are the allowed filters, by git's name of their kind: "blob:none", "blob:limit", "tree", "sparse:oid",
// "object:type", "combine". The zero value allows all.
type FilterRules struct {
	refuseOthers bool // refuse kinds that are not in named
	named        map[string]bool
	treeLimited  bool
	maxTree      uint64 // maximum depth of a "tree" filter, if treeLimited
}

func (r FilterRules) clone() FilterRules {
	named := make(map[string]bool, len(r.named))
	maps.Copy(named, r.named)
	r.named = named
	return r
}

// filterSection is the prefix of the keys of single kinds.
const filterSection = "uploadpackfilter."

// read reads uploadpackfilter.KIND.allow and uploadpackfilter.tree.maxDepth, which also allows its kind.
func (r *FilterRules) read(v variable) error {
	name, ok := strings.CutPrefix(v.key, filterSection)
	if !ok {
		return nil
	}
	if kind, ok := strings.CutSuffix(name, ".allow"); ok {
		var allowed bool
		err := v.readBool(&allowed)
		r.named[kind] = allowed
		return err
	}
	if name != "tree.maxdepth" {
		return nil
	}
	depth, err := v.unsigned()
	r.named["tree"], r.treeLimited, r.maxTree = true, true, depth
	return err
}

// Check returns an error if a filter of this kind is not allowed. depth is that of a "tree" filter.
func (r *FilterRules) Check(kind string, depth uint64) error {
	allowed, named := r.named[kind]
	if !named {
		allowed = !r.refuseOthers
	}
	if !allowed {
		return fault.New(fault.Denied, "filter '%s' not supported", kind)
	}
	if kind == "tree" && r.treeLimited && depth > r.maxTree {
		return fault.New(fault.Denied, "tree filter allows max depth %d, but got %d", r.maxTree, depth)
	}
	return nil
}
