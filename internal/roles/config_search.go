package roles

import (
	"log/slog"

	"github.com/packhorse-git/packhorse/client"
	"github.com/packhorse-git/packhorse/internal/config"
)

// client makes a client of the search process, for a gateway.
func searchClient(s *config.SearchConfig, log *slog.Logger) (*client.Client, error) {
	trust, err := s.LoadTrust(config.RoleGateway, log)
	if err != nil {
		return nil, err
	}
	return client.New(s.Address, ClientOptions(trust, s.ServerName))
}
