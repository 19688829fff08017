package gitload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
)

// refList is the list of refs that a server shows.
type refList struct {
	format git.ObjectFormat
	Refs   []ref
}

// ListRefs requests HEAD, branches, tags and pull requests.
func ListRefs(ctx context.Context, t *loadgen.Target, timeout time.Duration) (*refList, error) {
	_, format, err := Discover(ctx, t)
	if err != nil {
		return nil, err
	}
	prefixes := append([]string{"HEAD"}, coldPrefixes[:]...)
	answer, err := t.AskAll(ctx, t.Post("git-upload-pack", "", LsRefs(format, prefixes...)), timeout)
	if err != nil {
		return nil, err
	}
	refs, err := ParseRefs(answer)
	return &refList{format, refs}, err
}

var coldPrefixes = [...]string{"refs/heads/", "refs/tags/", "refs/pull/"}

// maxTips limits the tips of a load. A thousand tips give half a million pairs.
const maxTips = 1000

// coldTips chooses different objects for the shapes of a cold load, evenly distributed over all refs.
func coldTips(refs []ref) []string {
	seen := map[git.ObjectID]bool{}
	var all []string
	for _, r := range refs {
		if r.Id.IsZero() || seen[r.Id] {
			continue
		}
		for _, prefix := range coldPrefixes {
			if strings.HasPrefix(r.Name, prefix) {
				seen[r.Id] = true
				all = append(all, r.Id.String())
				break
			}
		}
	}
	if len(all) <= maxTips {
		return all
	}
	tips := make([]string, maxTips)
	for i := range tips {
		tips[i] = all[i*len(all)/maxTips]
	}
	return tips
}

// MaxColdDepth limits the depth of the shapes. It is that of a shallow clone by a CI runner.
const MaxColdDepth = 20

// shapes makes requests that differ from each other. Each is for two random tips of the repository and a random
// depth. The seed makes two runs differ. Safe for concurrent use.
type shapes struct {
	target *loadgen.Target
	format git.ObjectFormat
	tips   []string

	mu        sync.Mutex
	rng       *rand.Rand      // guarded by mu, like the fields below
	used      map[string]bool // keys of the shapes so far
	exhausted bool
}

func newShapes(t *loadgen.Target, refs *refList, seed uint64) (*shapes, error) {
	s := &shapes{target: t, format: refs.format, tips: coldTips(refs.Refs), rng: rand.New(rand.NewPCG(seed, 0)),
		used: map[string]bool{}}
	if len(s.tips) == 0 {
		return nil, errors.New("the repository has no branches, tags or pull requests to clone")
	}
	return s, nil
}

// next returns a new request, or nil if it does not find one.
func (s *shapes) next(int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range 1000 {
		a, b, depth := s.rng.IntN(len(s.tips)), s.rng.IntN(len(s.tips)), 1+s.rng.IntN(MaxColdDepth)
		key := fmt.Sprint(min(a, b), max(a, b), depth)
		if s.used[key] {
			continue
		}
		s.used[key] = true
		r := FetchRequest{Format: s.format, Depth: depth, Wants: []string{s.tips[a], s.tips[b]}}
		if a == b {
			r.Wants = r.Wants[:1]
		}
		return s.target.Post("git-upload-pack", "", r.Body())
	}
	s.exhausted = true
	return nil
}
