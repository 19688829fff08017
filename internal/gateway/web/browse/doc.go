// Package browse serves the pages of repositories: directories, files, history, commits, comparisons, refs.
//
// An address is /REPOSITORY/-/KIND/REVISION/PATH. A revision may have slashes: the longest one that exists is meant.
// All content comes from calls of storage nodes (proto/packhorse/v1), with the rights of the visitor. Address and
// commit determine the main part of a page, which is kept in memory. It is sent again after the revision has been
// resolved. If no ref led to the commit, the node checks first that the visitor may see it.
package browse
