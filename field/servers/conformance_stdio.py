"""The everything-server of the Python SDK's sources over stdio, for peers that start their backend themselves."""

from mcp_everything_server.server import mcp

mcp.run(transport="stdio")
