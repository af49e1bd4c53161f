"""A stdio server of the Python SDK with a dynamic toolset: `enable_toolset` registers `word` at run time and says that the tools
changed, `disable_toolset` takes it away again. Each process has tools of its own.
"""

from mcp.server.fastmcp import Context, FastMCP

mcp = FastMCP("toolsets")


def word() -> str:
    """Says a word."""
    return "abracadabra"


@mcp.tool()
async def enable_toolset(ctx: Context) -> str:
    """Registers further tools."""
    mcp.add_tool(word)
    await ctx.session.send_tool_list_changed()
    return "enabled"


@mcp.tool()
async def disable_toolset(ctx: Context) -> str:
    """Removes them."""
    mcp.remove_tool("word")
    await ctx.session.send_tool_list_changed()
    return "disabled"


# The SDK declares no changes of lists unless it is told to.
options = mcp._mcp_server.create_initialization_options
mcp._mcp_server.create_initialization_options = lambda *args, **more: _with_changes(options(*args, **more))


def _with_changes(made):
    made.capabilities.tools.listChanged = True
    return made


if __name__ == "__main__":
    mcp.run()
