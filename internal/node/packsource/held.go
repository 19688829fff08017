package packsource

import (
	"context"
	"io"
)

// Held returns a Source that holds the objects of a repository (Repository.Hold) while inner makes packs from them.
func Held(inner Source) Source { return held{inner} }

type held struct{ inner Source }

// Open implements Source.
func (h held) Open(ctx context.Context, spec *Spec) (Pack, error) {
	if spec.Repo.Hold == nil {
		return h.inner.Open(ctx, spec)
	}
	release, err := spec.Repo.Hold(ctx)
	if err != nil {
		return nil, err
	}
	pack, err := h.inner.Open(ctx, spec)
	if err != nil {
		release()
		return nil, err
	}
	return &heldPack{pack, release}, nil
}

// heldPack releases the objects when it is closed.
type heldPack struct {
	Pack
	release func()
}

// WriteIndex implements Indexed.
func (p *heldPack) WriteIndex(w io.Writer) error {
	if indexed, ok := p.Pack.(Indexed); ok {
		return indexed.WriteIndex(w)
	}
	return nil
}

// Close implements Pack.
func (p *heldPack) Close() error {
	defer p.release()
	return p.Pack.Close()
}
