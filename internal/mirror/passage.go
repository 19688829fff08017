package mirror

import (
	"bytes"
	"context"
	"slices"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// passage is how the origin may get a fetch of a client. The mirror's own credential can read more than the mirrored
// refs, which all readers may see.
type passage int

const (
	// passNot means that the origin does not get it.
	passNot passage = iota
	// passForAll means that it is for mirrored refs only, so that all readers may share the response.
	passForAll
	// passForCaller means that the origin decides by the caller's credential. Callers with another one do not get the
	// response.
	passForCaller
)

// credential returns the credential for relayed requests. If the origin decides about readers, it is that of the
// caller, and a caller without one stays anonymous. Zero means the mirror's own.
func (x *exchange) credential() node.Secret {
	if x.rule.OriginDecides && x.session.Authorization.IsZero() {
		return origin.Anonymous
	}
	return x.session.Authorization
}

// isRefusedAnonymous reports whether the origin refused a relayed request because the caller has no credential for it.
// A token or rule of this server may still let the caller read the mirror.
func (x *exchange) isRefusedAnonymous(err error) bool {
	return isRefusal(err) && x.rule.OriginDecides && x.session.Authorization.IsZero()
}

// relayFetch sends a fetch to the origin, if it may get it. If done is false, the mirror has to answer.
func (x *exchange) relayFetch(ctx context.Context, body []byte) (done bool, err error) {
	p, err := x.passageOf(ctx, body)
	if err != nil || p == passNot {
		return err != nil, err
	}
	x.mirror.changeDemand(func(d *demand) { d.fetches++; d.relays++ })
	defer x.mirror.changeDemand(func(d *demand) { d.relays-- })
	if err = x.relay(ctx, p, body); x.isRefusedAnonymous(err) {
		return false, nil
	}
	return true, err
}

// passageOf decides about a fetch.
func (x *exchange) passageOf(ctx context.Context, body []byte) (passage, error) {
	if !x.canRelay() {
		return passNot, nil
	}
	f := x.readFetch(body)
	if f != nil {
		refs, err := x.originRefs(ctx)
		if err != nil {
			return passNot, err
		}
		if refs != nil && !namesObjects(f, body) && asksFor(f, refs, x.rule.mirrors) {
			return passForAll, nil
		}
	}
	if x.rule.OriginDecides {
		return passForCaller, nil
	}
	if f == nil || !x.rule.ChangeRequests {
		return passNot, nil
	}
	refs, err := x.listOthers(ctx, node.Secret{}, requestRefs)
	if err == nil && asksFor(f, refs, isChangeRequest) {
		return passForAll, nil
	}
	return passNot, err
}

// namesObjects reports whether a fetch names objects of the client. The response would show which ones the origin has.
func namesObjects(f *protocol.Fetch, body []byte) bool {
	return len(f.Shallow) > 0 || bytes.Contains(body, []byte("have "))
}

// readFetch parses a fetch. It returns nil for another request, and if the origin would use objects that the client
// only names. These are a filter in an object, commits that bound the history, and a boundary that is removed.
func (x *exchange) readFetch(body []byte) *protocol.Fetch {
	packets, format := pktline.NewReader(bytes.NewReader(body)), formatOf(body)
	var f *protocol.Fetch
	if x.session.Version == protocol.V2 {
		if q, err := protocol.ReadRequest(packets, format, allFeatures, protocol.Limits{}); err == nil {
			f = q.Fetch
		}
	} else if needs, err := protocol.ReadNeeds(packets, format, allFeatures, protocol.Limits{}); err == nil {
		f = &needs.Fetch
	}
	const infinite = 0x7fffffff // git fetch --unshallow
	switch {
	case f == nil, len(f.DeepenNot) > 0, len(f.Shallow) > 0 && (f.Depth >= infinite || f.DeepenRelative):
		return nil
	case f.Filter != nil && (f.Filter.Kind == protocol.FilterSparse || f.Filter.Kind == protocol.FilterCombine):
		return nil
	}
	return f
}

// formatOf returns the object format that a request names.
func formatOf(body []byte) git.ObjectFormat {
	if bytes.Contains(body, []byte("object-format=sha256")) {
		return git.SHA256
	}
	return git.SHA1
}

// asksFor reports whether a fetch wants nothing but refs in a list that the caller may see.
func asksFor(f *protocol.Fetch, refs *origin.Refs, shows func(git.RefName) bool) bool {
	list, err := refs.List()
	if err != nil || len(f.Wants)+len(f.WantRefs) == 0 {
		return false
	}
	tips, names := make(map[git.ObjectID]bool), make(map[git.RefName]bool)
	for _, ref := range list.Refs {
		if shows(ref.Name) {
			tips[ref.ID], tips[ref.Peeled], names[ref.Name] = true, true, true
		}
	}
	return !slices.ContainsFunc(f.Wants, func(id git.ObjectID) bool { return !tips[id] }) &&
		!slices.ContainsFunc(f.WantRefs, func(name git.RefName) bool { return !names[name] })
}
