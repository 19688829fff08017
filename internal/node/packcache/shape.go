package packcache

import (
	"time"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// shape is the common part of the requests for the packs of successive tips. The zero shape stands for requests that
// have nothing in common with others: fetches by clients that have something already.
type shape struct {
	repository, filter string
	shallow, all, tags bool // a boundary, several wants, include-tag
}

func shapeOf(s *packsource.Spec) shape {
	if len(s.Haves) > 0 {
		return shape{}
	}
	return shape{
		repository: s.Repo.Incarnation, filter: s.Filter,
		shallow: len(s.Shallow) > 0, all: len(s.Wants) > 1, tags: len(s.Tags) > 0,
	}
}

// popular has the shapes of packs that were requested more than once, and the time of the last such request.
type popular map[shape]time.Time

// maxPopular is the maximum number of popular shapes. Further ones do not count.
const maxPopular = 4096

func (p popular) add(s shape, now time.Time) {
	if s != (shape{}) && (len(p) < maxPopular || p.has(s)) {
		p[s] = now
	}
}

func (p popular) has(s shape) bool {
	_, ok := p[s]
	return ok
}

// expire removes the shapes of which no pack was requested again for the time age.
func (p popular) expire(now time.Time, age time.Duration) {
	for s, t := range p {
		if now.Sub(t) >= age {
			delete(p, s)
		}
	}
}
