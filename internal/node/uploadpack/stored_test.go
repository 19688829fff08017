package uploadpack

import (
	"strings"
	"testing"

	"github.com/packhorse-git/packhorse/internal/git/repo"
)

// Store is a store in memory. NewStore is set by tests in package uploadpack_test, because package store imports this
// one.
type Store interface {
	// Import copies a bare repository into the store, and returns it.
	Import(t testing.TB, dir string) Stored
}

// Stored is a repository in a Store.
type Stored interface {
	repo.Place
	Dir() string
}

var NewStore func(t *testing.T) Store

// theStore is the store of TestInStore.
var theStore Store

// TestInStore repeats tests with the repositories in a store: those whose repositories do not change. With -short it
// runs two of them.
func TestInStore(t *testing.T) {
	t.Parallel()
	theStore = NewStore(t)
	for name, test := range map[string]func(*testing.T){
		"Differential": TestDifferential, "Advertisement": TestAdvertisementAsGit, "Hidden": TestHiddenRefsAsGit,
		"Odd": TestOddRequestsAsGit, "ObjectInfo": TestObjectInfoAsGit, "Capabilities": TestCapabilitiesAsGit,
		"Filters": TestFilterRulesAsGit, "SwitchedOff": TestSwitchedOffAsGit, "Unborn": TestUnbornAsGit,
		"WantsOfVersion0": TestWantsOfVersion0AsGit, "Bundles": TestBundleURI,
		"WantedObjects": TestWantedObjectsPassFilters,
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "Advertisement" && name != "WantsOfVersion0" {
				t.Skip("only without -short")
			}
			test(t)
		})
	}
}

// isInStore reports whether a test is a part of TestInStore.
func isInStore(t testing.TB) bool { return strings.HasPrefix(t.Name(), "TestInStore/") }
