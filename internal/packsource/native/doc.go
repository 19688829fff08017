// Package native makes packs in process. It chooses the objects of a pack, and copies their entries from the packs of
// the repository and from packs that it made earlier. Only entries whose delta base is not in the new pack are encoded
// again.
package native
