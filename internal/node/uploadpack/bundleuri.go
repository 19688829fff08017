package uploadpack

import (
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
)

// bundleURI answers the bundle-uri command (gitprotocol-v2(5), "bundle-uri").
func bundleURI(r *repo.Repo, response node.ResponseWriter) error {
	var b []byte
	for _, line := range r.Policy().Bundles.Lines {
		b = pktline.Append(b, line)
	}
	return sendWhole(pktline.AppendFlush(b), response)
}
