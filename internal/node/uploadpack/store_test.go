package uploadpack_test

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/node/uploadpack"
	"github.com/packhorse-git/packhorse/internal/store/storetest"
)

func init() {
	uploadpack.NewStore = func(t *testing.T) uploadpack.Store { return testStore{storetest.New(t, t.TempDir())} }
}

type testStore struct{ *storetest.Node }

func (s testStore) Import(t testing.TB, dir string) uploadpack.Stored { return s.Node.Import(t, dir) }
