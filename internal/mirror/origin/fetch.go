package origin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// Refs asks for HEAD and the refs whose names begin with one of the prefixes; all refs without prefixes.
func (o *Origin) Refs(ctx context.Context, path string, auth Secret, prefixes []string) (*Refs, error) {
	if o.sessions != nil {
		return o.streamRefs(ctx, path, prefixes)
	}
	auth, isOwn, err := o.credential(ctx, auth, protocol.UploadPack)
	if err != nil {
		return nil, err
	}
	c := call{operation: opRefs, path: path, service: protocol.UploadPack, auth: auth, isOwn: isOwn, gitProtocol: version2}
	// a path that was redirected can belong to another repository by now
	if known, ok := o.known.Get(path); ok && known.version == protocol.V2 && known.moved == "" {
		refs, err := o.lsRefs(ctx, c, known, prefixes)
		if !isOutdated(err) {
			return refs, err
		}
	}
	list := o.listing(prefixes)
	known, err := o.learn(ctx, c, list)
	if err != nil {
		return nil, err
	}
	if known.version == protocol.V2 {
		return o.lsRefs(ctx, c, known, prefixes)
	}
	refs := list.result(known.advertisement)
	refs.Moved = known.moved
	return refs, nil
}

// learn asks for the advertisement of a repository and remembers it. The refs of version 0 are added to list.
func (o *Origin) learn(ctx context.Context, c call, list *listing) (repository, error) {
	var known repository
	c.operation = opAdvertisement
	_, moved, err := o.discover(ctx, c, func(a *answer) (err error) {
		known.advertisement, err = readAdvertisement(pktline.NewReader(a), list)
		return err
	})
	if err != nil {
		o.known.Remove(c.path)
		return known, err
	}
	known.moved = moved
	o.known.Add(c.path, known)
	return known, nil
}

// lsRefs asks for refs in version 2.
func (o *Origin) lsRefs(ctx context.Context, c call, known repository, prefixes []string) (*Refs, error) {
	body := known.lsRefs(o.o.Agent, prefixes)
	c.body, c.length = bytes.NewReader(body), int64(len(body))
	if known.moved != "" {
		c.path = known.moved
	}
	var refs *Refs
	_, err := o.request(ctx, &c, func(a *answer) error {
		list := o.listing(prefixes)
		err := list.readLsRefs(pktline.NewReader(a))
		refs = list.result(known.advertisement)
		return err
	})
	if err != nil {
		return nil, err
	}
	refs.Moved = known.moved
	return refs, nil
}

// isOutdated reports whether an error may come from what was remembered about the repository. Git ends an answer early
// if the object format of the request is not that of the repository.
func isOutdated(err error) bool {
	if err == nil || IsDown(err) {
		return errors.Is(err, io.ErrUnexpectedEOF)
	}
	e, ok := errors.AsType[*Error](err)
	return !ok && fault.Is(err, fault.Unavailable) ||
		ok && e.Status != http.StatusUnauthorized && e.Status != http.StatusForbidden
}

// Fetch asks for a pack in one request, without a negotiation. The caller closes the pack. The end of ctx ends it, too.
func (o *Origin) Fetch(ctx context.Context, path string, auth Secret, f FetchRequest) (*Pack, error) {
	if o.sessions != nil {
		return o.streamFetch(ctx, path, f)
	}
	auth, isOwn, err := o.credential(ctx, auth, protocol.UploadPack)
	if err != nil {
		return nil, err
	}
	c := call{operation: opFetch, path: path, service: protocol.UploadPack, auth: auth, isOwn: isOwn,
		gitProtocol: version2, isPack: true}
	known, ok := o.known.Get(path)
	if !ok {
		small := c
		small.isPack = false
		if known, err = o.learn(ctx, small, o.listing([]string{"HEAD"})); err != nil {
			return nil, err
		}
	}
	pack, err := o.fetch(ctx, c, known, f)
	if isOutdated(err) {
		o.known.Remove(path)
	}
	return pack, err
}

// fetch asks for a pack of a repository whose version is known.
func (o *Origin) fetch(ctx context.Context, c call, known repository, f FetchRequest) (*Pack, error) {
	if err := known.checkFormat(&f); err != nil {
		return nil, err
	}
	body := f.v2(o.o.Agent)
	if known.version == protocol.V0 {
		body, c.gitProtocol = f.v0(o.o.Agent, known.advertisement), ""
	}
	if known.moved != "" {
		c.path = known.moved
	}
	c.body, c.length = bytes.NewReader(body), int64(len(body))
	a, err := o.request(ctx, &c, nil)
	if err != nil {
		return nil, err
	}
	pack := newPack(a, pktline.NewReader(a), known.version, f.Progress)
	if err := pack.Begin(); err != nil {
		return nil, errors.Join(err, pack.Close())
	}
	return pack, nil
}
