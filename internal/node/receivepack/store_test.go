package receivepack_test

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/node/receivepack"
	"github.com/packhorse-git/packhorse/internal/store/storetest"
)

func init() {
	receivepack.NewStore = func(t *testing.T) receivepack.Store { return testStore{storetest.New(t, t.TempDir())} }
}

type testStore struct{ *storetest.Node }

func (s testStore) Import(t testing.TB, dir string) receivepack.Stored { return s.Node.Import(t, dir) }
