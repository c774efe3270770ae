"""Tools of the gardener. `plan_water` is mapped to the instruction `water_plan`, so the model cannot call it directly."""

from actgent import tool

LITRES_A_WEEK = {"tomatoes": 25, "spinach": 12}
OTHERS = 18


@tool(thread=False, effect="pure")
def plan_water(plant: str, square_metres: float) -> str:
    """Compute the litres of water that a bed needs per week."""
    litres = LITRES_A_WEEK.get(plant.lower(), OTHERS) * square_metres
    return f"{litres:g} litres a week"
