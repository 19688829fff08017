package repo

import (
	"cmp"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
)

// Policy is what a client may request of a repository. It is the repository's own config (git-config(1), uploadpack.*,
// uploadpackfilter.*, lsrefs.* and transfer.*), with the server's defaults for missing keys. Immutable once the
// repository is open.
//
// An invalid value is an error, as in git: a rule that cannot be read might have refused something. Git reads most of
// these keys value by value and fails on any invalid one. Of lsrefs.unborn and transfer.advertiseObjectInfo it reads
// only the last value. This package does the same.
type Policy struct {
	Filter      bool        // uploadpack.allowFilter: the client may leave objects out
	Filters     FilterRules // uploadpackfilter.*: by which filters
	RefInWant   bool        // uploadpack.allowRefInWant: wants may be names of refs
	SidebandAll bool        // uploadpack.allowSidebandAll: the whole answer may travel in a side-band

	// Wants that are allowed besides the advertised refs, in versions 0 and 1.
	AllowTip       bool // uploadpack.allowTipSHA1InWant: the tips of hidden refs
	AllowReachable bool // uploadpack.allowReachableSHA1InWant: objects that refs reach
	AllowAny       bool // uploadpack.allowAnySHA1InWant: every object that exists; the two above are set with it

	// OwnAny reports whether AllowAny comes from the repository's own config. Then it holds for every protocol version.
	// It also holds where the server would not allow as much: with hidden refs, and with objects borrowed from other
	// repositories.
	OwnAny bool

	KeepAlive  time.Duration // uploadpack.keepAlive: the longest silence in a pack; 0: no limit
	Unborn     Unborn        // lsrefs.unborn
	SessionID  bool          // transfer.advertiseSID
	ObjectInfo bool          // transfer.advertiseObjectInfo: the sizes of objects may be requested
	Bundles    Bundles       // uploadpack.advertiseBundleURIs; only a repository's own config has one
}

// Unborn is whether the server reports the branch of an unborn HEAD to clients (git-config(1), lsrefs.unborn).
type Unborn string

const (
	UnbornAdvertise Unborn = "advertise" // yes, and the server advertises it
	UnbornAllow     Unborn = "allow"     // only if they request it
	UnbornIgnore    Unborn = "ignore"    // they are not
)

// ParseUnborn reads it as git does, which is exacting about letter case.
func ParseUnborn(s string) (Unborn, error) {
	switch u := Unborn(s); u {
	case UnbornAdvertise, UnbornAllow, UnbornIgnore:
		return u, nil
	}
	return "", fault.New(fault.Invalid, `%.40q is not "advertise", "allow" or "ignore"`, s)
}

// DefaultPolicy is what holds where neither the server's configuration nor a repository's says anything. It is what git
// clients make the most of; git's own defaults turn Filter, RefInWant, SidebandAll and SessionID off.
func DefaultPolicy() Policy {
	return Policy{
		Filter: true, RefInWant: true, SidebandAll: true, KeepAlive: 5 * time.Second, Unborn: UnbornAdvertise,
		SessionID: true, ObjectInfo: true,
	}
}

// policyKey reads one key of a config into a Policy.
type policyKey struct {
	last bool // git reads the last value only: earlier ones may be invalid
	read func(p *Policy, v variable) error
}

// policyKeys are the keys with a fixed name; wantKeys and FilterRules.read have the others.
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

// wants is the set that the fields stand for.
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

// wantKeys are those three.
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
	return nil
}

func (p *Policy) readKeepAlive(v variable) error {
	seconds, err := v.int()
	p.KeepAlive = time.Duration(max(seconds, 0)) * time.Second
	return err
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
	refuseOthers bool // kinds that are not in named
	named        map[string]bool
	treeLimited  bool
	maxTree      uint64 // the deepest "tree" filter, if treeLimited
}

func (r FilterRules) clone() FilterRules {
	named := make(map[string]bool, len(r.named))
	for kind, allowed := range r.named {
		named[kind] = allowed
	}
	r.named = named
	return r
}

// filterSection is the prefix of the keys of single kinds.
const filterSection = "uploadpackfilter."

// read takes uploadpackfilter.KIND.allow and uploadpackfilter.tree.maxDepth, which allows that kind too.
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

// Check refuses a filter of a kind that may not be used. Depth is that of a "tree" filter.
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
