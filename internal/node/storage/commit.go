package storage

import "github.com/packhorse-git/packhorse/internal/node/edit"

// Signer returns the key that signs commits; nil: there is none.
func (n *Node) Signer() *edit.Signer { return n.signer }
