package roles

import (
	"github.com/packhorse-git/packhorse/internal/gateway/router"
	"github.com/packhorse-git/packhorse/internal/gateway/web/api"
	"github.com/packhorse-git/packhorse/internal/node/storage"
)

// localNode is the name of the node in the gateway's own process.
const localNode = "local"

// buildServe builds a gateway and a storage node in one process.
func (s *server) buildServe() error {
	if err := s.addNode(); err != nil {
		return err
	}
	var searchAPI *api.API
	if s.cfg.Search.Enabled {
		source := searchNode{s.node, s.lanes.Cold}
		err := s.addSearch(source)
		if err != nil {
			return err
		}
		s.node.OnChange(s.search.Touch)
		o := api.APIOptions{Repositories: source, Searcher: s.search, Status: s.search.Status}
		if searchAPI, err = s.newSearchAPI(o); err != nil {
			return err
		}
	}
	s.followStore()
	routes := router.New(s.reg)
	replica := &router.Replica{Name: localNode, Node: s.sessions(), Revisions: storage.Resolver{Node: s.node},
		Files: s.node}
	if err := routes.Set([]router.Route{{Replicas: []*router.Replica{replica}}}); err != nil {
		return err
	}
	if err := s.addGateway(routes, nil, searchAPI); err != nil {
		return err
	}
	s.addAdmin()
	return nil
}
